//! Parts of a path.

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use rollwright_core::fault::Fault;
use rollwright_core::ids::{GroupId, TrajectoryId};
use rollwright_core::version::{BatchId, Version};
use serde::de::DeserializeOwned;

use super::ApiError;
use crate::fault::user;

/// What one part of a path names.
pub(super) trait Parameter: Sized {
    fn parse(text: &str) -> Result<Self, Fault>;
}

impl Parameter for GroupId {
    fn parse(text: &str) -> Result<Self, Fault> {
        Self::new(text).map_err(|error| user("InvalidPath", error.to_string()))
    }
}

impl Parameter for TrajectoryId {
    fn parse(text: &str) -> Result<Self, Fault> {
        Self::new(text).map_err(|error| user("InvalidPath", error.to_string()))
    }
}

impl Parameter for BatchId {
    fn parse(text: &str) -> Result<Self, Fault> {
        number("batch", text).map(Self)
    }
}

impl Parameter for Version {
    fn parse(text: &str) -> Result<Self, Fault> {
        number("version", text).map(Self)
    }
}

fn number(what: &str, text: &str) -> Result<u64, Fault> {
    text.parse().map_err(|_| {
        user("InvalidPath", format!("`{text}` in the path is not the number of a {what}"))
    })
}

/// The one parameter of a path.
pub(super) struct One<T>(pub(super) T);

impl<S: Send + Sync, T: Parameter> FromRequestParts<S> for One<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let text: String = path(parts, state).await?;
        Ok(Self(T::parse(&text)?))
    }
}

/// A bucket's version and name.
pub(super) struct BucketPath {
    pub(super) version: Version,
    pub(super) name: String,
}

impl<S: Send + Sync> FromRequestParts<S> for BucketPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let (version, name): (String, String) = path(parts, state).await?;
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let hidden = name.starts_with('.');
        if name.is_empty() || name.len() > 128 || hidden || !name.bytes().all(allowed) {
            let message = format!(
                "`{}` is not a bucket's name: use 1 to 128 characters of A-Z a-z 0-9 . _ - that do not begin with a dot",
                name.chars().take(128).collect::<String>()
            );
            return Err(user("InvalidBucketName", message).into());
        }
        Ok(Self { version: Version::parse(&version)?, name })
    }
}

async fn path<S: Send + Sync, T: DeserializeOwned + Send>(
    parts: &mut Parts,
    state: &S,
) -> Result<T, Fault> {
    let path = Path::<T>::from_request_parts(parts, state).await;
    let invalid = |error: PathRejection| user("InvalidPath", error.body_text());
    Ok(path.map_err(invalid)?.0)
}
