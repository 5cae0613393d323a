//! The controllers: from custom resources to pods, services and status.
#![forbid(unsafe_code)]
