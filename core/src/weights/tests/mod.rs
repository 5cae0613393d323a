//! The weight updates against a model of the engines around them.
