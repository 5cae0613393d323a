//! The buffer against a model of its disk, its trainer and its drivers.

mod chaos;
mod rules;
mod world;
