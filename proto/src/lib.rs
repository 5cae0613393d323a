//! The wire protocol of Rollwright, generated from `rollwright/v1/*.proto`.
#![forbid(unsafe_code)]

/// Package `rollwright.v1`.
pub mod v1 {
    #![allow(missing_docs, clippy::pedantic)]
    tonic::include_proto!("rollwright.v1");
}
