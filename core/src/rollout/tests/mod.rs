//! The composition against a model of engines, drivers, disk and trainer.

mod chaos;
mod updates;
mod world;
