//! Whether built objects are in the cluster: a status can only be made of applied ones.

mod sealed {
    pub trait Sealed {}
}

/// [`Prepared`] or [`Applied`].
pub trait State: sealed::Sealed {}

/// Built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepared;

/// Built and in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Objects that were not yet as built.
    pub written: u32,
}

impl sealed::Sealed for Prepared {}
impl sealed::Sealed for Applied {}
impl State for Prepared {}
impl State for Applied {}
