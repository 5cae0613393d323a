//! Groups and their buffer against a model of disk, drivers, engines and services.

mod bounds;
mod chaos;
mod disk;
mod outside;
mod pipeline;
mod rules;
mod world;
