//! Who reaches a gateway of a cluster: the job's key, its namespace's tokens and the
//! operator's; and what the kubelet may ask without any.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests too

use std::time::Duration;

use rollwright_auth::MetricsListen;
use rollwright_auth::simulated_issuer::{OWN_AUDIENCE, SimulatedIssuer};
use rollwright_crds::job::RolloutJob;
use rollwright_gateway::{AuthConfig, Gateway, GatewayConfig, Listen, Listeners, Namespace};
use serde_json::json;
use tokio_util::sync::CancellationToken;

const LIMIT: Duration = Duration::from_mins(1);
const KEY: &str = "0123456789abcdef-key";
const OPERATOR: (&str, &str) = ("rollwright", "rollwright-controllers");

#[tokio::test]
async fn a_gateway_is_its_namespaces() {
    let dir = tempfile::tempdir().unwrap();
    let issuer = SimulatedIssuer::new("https://kubernetes.default.svc");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let manifest: RolloutJob = serde_json::from_value(json!({
        "apiVersion": "rollwright.dev/v1alpha1", "kind": "RolloutJob", "metadata": {"name": "job"},
        "spec": {
            "model": {"path": "engine-sim"}, "engine": {"type": "vLLM", "image": "engine-sim"},
            "allocation": {"fixed": {"groups": [{"pool": "p", "degree": 1, "workers": 1}]}},
            "rollout": {"groupSize": 1, "batchGroups": 1},
        },
    }))
    .unwrap();
    let mut config = GatewayConfig::from_manifests(&manifest, &[], &[], dir.path()).unwrap();
    let namespace = Namespace::new("team").unwrap();
    config.limits.threads = 1;
    config.workers_api = true;
    config.namespace = Some(namespace.clone());
    let operator = format!("system:serviceaccount:{}:{}", OPERATOR.0, OPERATOR.1);
    let addr = "127.0.0.1:0".parse().unwrap();
    let token_file = Some(file("metrics-token", "scraper"));
    let listeners = Listeners {
        callers: Listen::Tcp(addr),
        auth: AuthConfig {
            api_keys: Some(file("keys", &format!("job:{KEY}\nmath:fedcba9876543210-key\n"))),
            namespace: Some(namespace),
            tokens: Some(issuer.trusted(file("jwks.json", &issuer.jwks()), &[&operator])),
        },
        metrics: Some(MetricsListen { addr, token_file }),
    };
    let gateway = Gateway::start(config, listeners).await.unwrap();
    let Listen::Tcp(callers) = gateway.address().clone() else { unreachable!() };
    let metrics = gateway.metrics_addr().unwrap();
    let stop = CancellationToken::new();
    let serving = tokio::spawn(gateway.serve(stop.clone()));
    let client = reqwest::Client::builder().no_proxy().timeout(LIMIT).build().unwrap();

    let token = |of: (&str, &str)| issuer.token(of.0, of.1);
    let (ours, theirs) = (token(("team", "trainer")), token(("other", "trainer")));
    // A namespace that is called as the job is, and one whose name begins as ours does.
    let (named, longer) = (token(("job", "trainer")), token(("team-b", "trainer")));
    let operator = issuer.token_for(OPERATOR.0, OPERATOR.1, &[OWN_AUDIENCE]);
    let of_no_receiver = token(OPERATOR);
    // Bearer, and what becomes of a look at the status and at the models, and of a change of the workers.
    for (bearer, expected) in [
        (Some(KEY), [200, 200, 403]),
        (Some(ours.as_str()), [200, 200, 403]),
        (Some(operator.as_str()), [200, 200, 200]),
        (Some(of_no_receiver.as_str()), [401, 401, 401]),
        (Some("fedcba9876543210-key"), [403, 403, 403]),
        (Some(theirs.as_str()), [403, 403, 403]),
        (Some(named.as_str()), [403, 403, 403]),
        (Some(longer.as_str()), [403, 403, 403]),
        (Some("0123456789abcdef-kez"), [401, 401, 401]),
        (None, [401, 401, 401]),
    ] {
        let status = client.get(format!("http://{callers}/rollout/v1/status"));
        let models = client.get(format!("http://{callers}/v1/models"));
        let workers = client.put(format!("http://{callers}/rollout/v1/workers"));
        let workers = workers.json(&json!({"workers": []}));
        let mut got = Vec::new();
        for request in [status, models, workers] {
            let request = match bearer {
                Some(bearer) => request.bearer_auth(bearer),
                None => request,
            };
            got.push(request.send().await.unwrap().status().as_u16());
        }
        assert_eq!(got, expected, "{bearer:?}");
    }

    let ask = async |url: String, bearer: Option<&str>| {
        let request = client.get(url);
        let request = match bearer {
            Some(bearer) => request.bearer_auth(bearer),
            None => request,
        };
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(ask(format!("http://{callers}/healthz"), None).await, 200);
    assert_eq!(ask(format!("http://{metrics}/healthz"), None).await, 200);
    assert_eq!(ask(format!("http://{metrics}/metrics"), None).await, 401);
    assert_eq!(ask(format!("http://{metrics}/metrics"), Some("scraper")).await, 200);
    stop.cancel();
    serving.await.unwrap().unwrap();
}
