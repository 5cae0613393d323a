//! Weights on their way to the workers' nodes (`RollArt` 6.3): the trainer pushes buckets
//! of about 1 GiB into the [`BucketStore`] once, every node's [`Puller`] fetches them
//! while generation goes on, and only what is left at commit is exposed. When each part
//! happens is decided in `rollwright_core::weights`.

mod bucket;
mod origin;
mod pace;
mod pull;
mod store;
mod upload;

pub use bucket::{Bucket, Listing};
pub use origin::Origin;
pub use pull::{PullConfig, Pulled, Puller};
pub use store::{BucketStore, StoreConfig};
