//! The scoring against a model of the services.

mod chaos;
mod rules;
mod world;
