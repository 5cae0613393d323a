//! The router against a model of the engines around it.

mod affinity;
mod bench;
mod chaos;
mod given;
mod oracle;
mod rules;
mod world;
