//! The authority of a queue and its two certificates: kept while they serve, else minted.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;

use super::fetch::{Names, Seen};
use crate::pki::{Authority, Leaf, LeafSpec, PkiError, Purpose};

/// Certificates of a queue's agent link.
#[derive(Clone, Debug)]
pub(super) struct Certificates {
    pub(super) authority: Authority,
    pub(super) server: Leaf,
    pub(super) agents: Leaf,
    /// Something was minted or moved on, which is not in the Secrets yet.
    pub(super) renewed: bool,
}

impl Certificates {
    /// Those of the Secrets, with what is due or missing made anew.
    pub(super) fn current(
        namespace: &str,
        queue: &str,
        seen: &Seen,
        now: Timestamp,
    ) -> Result<Self, PkiError> {
        let name = format!("{namespace}.{queue}");
        let before =
            seen.authority.as_ref().and_then(|secret| Authority::read(secret.data.as_ref()?, now));
        let authority = match before.clone() {
            Some(authority) => authority.advanced(&name, now)?,
            None => Authority::mint(&name, now)?,
        };
        let mut renewed = before.as_ref() != Some(&authority);
        let mut leaf = |spec: LeafSpec, secret: Option<&Secret>| {
            let kept = secret.and_then(read).filter(|leaf| leaf.serves(&spec, &authority, now));
            if let Some(kept) = kept {
                return Ok(kept);
            }
            renewed = true;
            Leaf::mint(&spec, &authority, now)
        };
        let server = leaf(server(namespace, queue), seen.server.as_deref())?;
        let agents = leaf(agents(namespace, queue), seen.agents.as_deref())?;
        Ok(Self { authority, server, agents, renewed })
    }

    /// The second at which the first of them is due.
    pub(super) fn due(&self) -> i64 {
        self.authority.due().min(self.server.due()).min(self.agents.due())
    }
}

fn read(secret: &Secret) -> Option<Leaf> {
    let data = secret.data.as_ref()?;
    let annotations = secret.metadata.annotations.as_ref()?;
    Leaf::read(annotations, &data.get("tls.crt")?.0, &data.get("tls.key")?.0)
}

fn server(namespace: &str, queue: &str) -> LeafSpec {
    let service = Names::of(queue).queue;
    LeafSpec {
        authority: format!("{namespace}.{queue}"),
        common: service.clone(),
        names: vec![
            format!("{service}.{namespace}.svc"),
            format!("{service}.{namespace}.svc.cluster.local"),
            format!("{service}.{namespace}"),
            service,
        ],
        purpose: Purpose::Server,
    }
}

fn agents(namespace: &str, queue: &str) -> LeafSpec {
    LeafSpec {
        authority: format!("{namespace}.{queue}"),
        common: "agent".to_owned(),
        names: vec![agent_name(namespace, queue)],
        purpose: Purpose::Client,
    }
}

/// The DNS name in the certificate of a queue's agents.
pub(super) fn agent_name(namespace: &str, queue: &str) -> String {
    format!("agent.{namespace}.{queue}")
}

/// Text as data of a Secret.
pub(super) fn bytes(text: &str) -> ByteString {
    ByteString(text.as_bytes().to_vec())
}
