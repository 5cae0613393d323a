//! The quickstart's workload: recorded trajectories over real packages, and the script by which
//! `engine-sim` plays them. The program runs it on one machine; the end-to-end tests run it on a
//! cluster too.
#![forbid(unsafe_code)]

pub mod script;
pub mod workload;
