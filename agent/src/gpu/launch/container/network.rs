//! The network of engines' containers.

use std::collections::HashMap;

use bollard::models::NetworkCreateRequest;
use bollard::query_parameters::ListNetworksOptionsBuilder;
use rollwright_core::gpu::Trouble;

use super::{Containers, SORT, refused};
use crate::docker::labels;

impl Containers {
    /// Name of the engines' network, another where they reach other machines: a policy that
    /// was changed holds for the next engine.
    pub(in crate::gpu::launch) fn network(&self) -> String {
        let id: String = self.owner.id.chars().take(8).collect();
        format!("{}-{id}", if self.policy.network { "rwgpo" } else { "rwgpu" })
    }

    /// Id of the engines' network, which is there from the first engine on.
    pub(super) async fn ensure_network(&self) -> Result<String, Trouble> {
        let name = self.network();
        // Docker lets two networks have one name.
        let _one = self.making.lock().await;
        let filters = HashMap::from([("name".to_owned(), vec![name.clone()])]);
        let options = ListNetworksOptionsBuilder::default().filters(&filters).build();
        let list = self.docker.raw().list_networks(Some(options)).await;
        let list = list.map_err(|error| {
            refused(&crate::fault::docker("looking for the engines' network", &error))
        })?;
        // The filter takes parts of names.
        let found = list.into_iter().find(|network| network.name.as_ref() == Some(&name));
        if let Some(id) = found.and_then(|network| network.id) {
            return Ok(id);
        }
        let options = HashMap::from([
            ("com.docker.network.bridge.name".into(), name.clone()),
            ("com.docker.network.bridge.enable_icc".into(), "false".into()),
        ]);
        let request = NetworkCreateRequest {
            name,
            driver: Some("bridge".into()),
            internal: Some(!self.policy.network),
            enable_ipv6: Some(false),
            options: Some(options),
            // Not a sandbox's network, which goes with the sandboxes.
            labels: Some(labels::of(&self.owner, SORT)),
            ..Default::default()
        };
        match self.docker.raw().create_network(request).await {
            Ok(made) => Ok(made.id),
            Err(error) => {
                Err(refused(&crate::fault::docker("making the engines' network", &error)))
            }
        }
    }
}
