//! Tests of the composition.
