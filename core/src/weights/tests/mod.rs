//! The weight updates against a model of the engines around them.

mod chaos;
mod oracle;
mod rules;
mod world;
