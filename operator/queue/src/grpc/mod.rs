//! The gRPC services.

mod action;
mod link;

pub(crate) use action::ActionApi;
pub(crate) use link::LinkApi;
