//! How a new version of the policy's weights reaches the workers.
