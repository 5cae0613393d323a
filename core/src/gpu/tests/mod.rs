//! The pool against models: chunks by brute force, and devices, engines and agents that fail
//! in every way.

mod backoff;
mod chaos;
mod checks;
mod chunks;
mod forgotten;
mod movable;
mod overlap;
mod reports;
mod rules;
mod stuck;
mod takeover;
mod terms;
mod world;
