//! The kubectl plug-in: plans and simulations at the command line.
#![forbid(unsafe_code)]
