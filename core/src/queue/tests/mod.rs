//! The queue against a model of the world around it.

mod agent;
mod chaos;
mod elastic;
mod rules;
mod stuck;
mod suites;
mod timed;
mod trajectories;
mod world;
