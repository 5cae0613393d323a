//! The router against a model of the engines around it.
