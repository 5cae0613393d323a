//! Strict reading of input files: every field known, present and given once, every
//! number in its range, every refusal with its place.

mod bytes;
mod fault;
mod fields;
mod json;
#[cfg(test)]
mod tests;

pub use bytes::read;
pub use fault::{Fault, InputError};
pub use fields::Object;
pub use json::{Value, parse};
