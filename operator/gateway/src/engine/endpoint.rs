//! Where an engine takes requests, and what it can be asked for.

use std::path::PathBuf;

use http::HeaderValue;
use rollwright_core::ids::WorkerId;
use rollwright_crds::engine::EngineType;

/// How to connect to an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// By name or IP, and port.
    Tcp(String, u16),
    /// By the path of a Unix socket.
    Unix(PathBuf),
}

/// An engine as the data path sees it.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// Which worker this is.
    pub worker: WorkerId,
    /// Its number among the job's workers: the label of its metrics.
    pub index: u32,
    /// Where it listens.
    pub address: Address,
    /// The `Host` header.
    pub host: HeaderValue,
    /// What stands before `/v1/...` in its paths; empty, or `/` and no slash at the end.
    pub base: String,
    /// Its own API key as a whole `Authorization` header, marked as sensitive.
    pub authorization: Option<HeaderValue>,
    /// Which dialect it speaks.
    pub kind: EngineType,
    /// It was started with priority scheduling, so requests may carry a priority.
    pub takes_priority: bool,
    /// `SGLang` that prefills: where decode workers find it.
    pub bootstrap: Option<Bootstrap>,
}

/// The bootstrap server of an `SGLang` engine that prefills.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bootstrap {
    /// Name or IP; an IPv6 address stands in brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
}

impl Bootstrap {
    /// On the engine's own host; none where that has no name.
    pub fn new(engine: &Address, port: u16) -> Option<Self> {
        match engine {
            Address::Tcp(host, _) if host.contains(':') => {
                Some(Self { host: format!("[{host}]"), port })
            }
            Address::Tcp(host, _) => Some(Self { host: host.clone(), port }),
            Address::Unix(_) => None,
        }
    }
}

/// A URL that no engine can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{url}` is no engine's address: {why}; give http://HOST:PORT, with a base path if need be, or unix:/PATH"
)]
pub struct InvalidUrl {
    url: String,
    why: &'static str,
}

impl Endpoint {
    /// The engine of `worker` at `url`: `http://HOST[:PORT][/BASE]` or `unix:/PATH`.
    pub fn new(worker: WorkerId, index: u32, url: &str) -> Result<Self, InvalidUrl> {
        let invalid = |why| InvalidUrl { url: url.to_owned(), why };
        let endpoint = |address, host: &str, base: &str| {
            Ok(Self {
                worker,
                index,
                address,
                host: HeaderValue::from_str(host).map_err(|_| invalid("it has odd characters"))?,
                base: base.trim_end_matches('/').to_owned(),
                authorization: None,
                kind: EngineType::OpenAI,
                takes_priority: false,
                bootstrap: None,
            })
        };
        if let Some(path) = url.strip_prefix("unix:") {
            return endpoint(Address::Unix(path.into()), "localhost", "");
        }
        let uri: http::Uri = url.parse().map_err(|_| invalid("it is no URL"))?;
        if uri.scheme_str() != Some("http") {
            return Err(invalid("it is neither http: nor unix:"));
        }
        if uri.query().is_some() {
            return Err(invalid("it has a query"));
        }
        let authority = uri.authority().ok_or_else(|| invalid("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(invalid("it has a user; give the key as a secret instead"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let address = Address::Tcp(host.to_owned(), authority.port_u16().unwrap_or(80));
        endpoint(address, authority.as_str(), uri.path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(url: &str) -> Result<Endpoint, InvalidUrl> {
        Endpoint::new(WorkerId::new("w").unwrap(), 0, url)
    }

    #[test]
    fn reads_urls() {
        let plain = endpoint("http://10.0.0.1:8000/").unwrap();
        assert_eq!(plain.address, Address::Tcp("10.0.0.1".into(), 8000));
        assert_eq!((plain.host.to_str().unwrap(), plain.base.as_str()), ("10.0.0.1:8000", ""));
        let based = endpoint("http://[::1]/a/b/").unwrap();
        assert_eq!((based.address, based.base.as_str()), (Address::Tcp("::1".into(), 80), "/a/b"));
        let unix = endpoint("unix:/run/engine.sock").unwrap();
        assert_eq!(unix.address, Address::Unix("/run/engine.sock".into()));
        for bad in ["", "ftp://x", "https://x", "http://u:p@x", "http://x/?a", "10.0.0.1:80"] {
            assert!(endpoint(bad).is_err(), "{bad}");
        }
    }
}
