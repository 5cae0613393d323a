//! Registry credentials from a Docker configuration file (`auths`).

use std::collections::HashMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bollard::auth::DockerCredentials;
use rollwright_core::fault::Fault;
use serde::Deserialize;

use crate::fault;

/// Names that Docker Hub goes by in such files.
const HUB: [&str; 3] = ["https://index.docker.io/v1/", "index.docker.io", "docker.io"];

#[derive(Default, Deserialize)]
struct File {
    #[serde(default)]
    auths: HashMap<String, Entry>,
}

#[derive(Default, Deserialize)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
}

/// What the file has for the registry of this image. It is read at each pull, so
/// that a rotated secret counts.
pub(super) fn of(path: &Path, image: &str) -> Result<Option<DockerCredentials>, Fault> {
    let failed = |what: String| {
        fault::infrastructure(
            "RegistryCredentials",
            format!("cannot use the registry credentials in {}: {what}", path.display()),
        )
    };
    let text = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    let file: File = serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))?;
    let registry = registry(image);
    let names: &[&str] = if registry == "docker.io" { &HUB } else { &[registry] };
    let same = |key: &str| {
        let bare = key.trim_start_matches("https://").trim_start_matches("http://");
        names.contains(&key) || names.contains(&bare.trim_end_matches('/'))
    };
    let Some((key, entry)) = file.auths.into_iter().find(|(key, _)| same(key)) else {
        return Ok(None);
    };
    let (mut username, mut password) = (entry.username, entry.password);
    if let Some(auth) = entry.auth.filter(|auth| !auth.is_empty()) {
        let pair = STANDARD.decode(auth).ok().and_then(|pair| String::from_utf8(pair).ok());
        let pair = pair.as_deref().and_then(|pair| pair.split_once(':'));
        let Some((name, word)) = pair else {
            return Err(failed(format!("`auth` of {key} is not base64 of user:password")));
        };
        (username, password) = (Some(name.to_owned()), Some(word.to_owned()));
    }
    Ok(Some(DockerCredentials {
        username,
        password,
        identitytoken: entry.identitytoken,
        serveraddress: Some(key),
        ..Default::default()
    }))
}

/// Host of an image reference, as Docker reads it.
fn registry(image: &str) -> &str {
    match image.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => host,
        _ => "docker.io",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_registry_gets_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        let auth = STANDARD.encode("me:se:cret");
        let text = format!(
            r#"{{"credsStore": "x", "auths": {{
                "https://index.docker.io/v1/": {{"auth": "{auth}"}},
                "https://reg.local:5000": {{"username": "u", "password": "p"}},
                "broken.local": {{"auth": "%%"}}
            }}}}"#
        );
        std::fs::write(&path, text).unwrap();
        let found = |image: &str| of(&path, image).unwrap();
        let hub = found("python:3").unwrap();
        assert_eq!(
            (hub.username.as_deref(), hub.password.as_deref()),
            (Some("me"), Some("se:cret"))
        );
        assert_eq!(found("team/image").unwrap().username.as_deref(), Some("me"));
        assert_eq!(found("reg.local:5000/a/b:1").unwrap().username.as_deref(), Some("u"));
        assert!(found("reg.local/a").is_none());
        assert!(of(&path, "broken.local/a").unwrap_err().message.contains("broken.local"));
        assert_eq!(of(&dir.path().join("none"), "a").unwrap_err().reason, "RegistryCredentials");
    }
}
