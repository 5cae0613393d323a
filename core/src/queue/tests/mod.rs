//! The queue against a model of the world around it.

mod chaos;
mod rules;
mod world;
