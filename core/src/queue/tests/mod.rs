//! The queue against a model of the world around it.

mod agent;
mod chaos;
mod rules;
mod stuck;
mod world;
