//! Which tokens and keys let in whom.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proptest::prelude::*;
use ring::hmac;
use rollwright_auth::simulated_issuer::{OWN_AUDIENCE, SigningKey, SimulatedIssuer};
use rollwright_auth::{AUDIENCE, AuthConfig, Authenticator, Caller, Namespace};
use rollwright_core::ids::JobId;
use serde_json::{Value, json};

const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
const OPERATOR: &str = "system:serviceaccount:rollwright:rollwright-controllers";

struct Place {
    dir: tempfile::TempDir,
    issuer: SimulatedIssuer,
}

impl Place {
    fn new() -> Self {
        let place =
            Self { dir: tempfile::tempdir().unwrap(), issuer: SimulatedIssuer::new(ISSUER) };
        place.publish(&place.issuer.jwks());
        place
    }

    fn publish(&self, jwks: &str) {
        replace(&self.dir.path().join("jwks.json"), jwks);
    }

    fn config(&self) -> AuthConfig {
        let tokens = self.issuer.trusted(self.dir.path().join("jwks.json"), &[OPERATOR]);
        AuthConfig { tokens: Some(tokens), ..AuthConfig::default() }
    }

    fn open(&self) -> Authenticator {
        self.config().open(SystemTime::now()).unwrap()
    }
}

/// Puts a file in place as the kubelet does: whole, under a new inode.
fn replace(path: &Path, text: &str) {
    let fresh = path.with_extension("fresh");
    std::fs::write(&fresh, text).unwrap();
    std::fs::rename(&fresh, path).unwrap();
}

/// What becomes of a token at a time.
fn at(who: &Authenticator, token: &str, now: SystemTime) -> Result<Caller, String> {
    let header = format!("Bearer {token}");
    who.authenticate(Some(&header), now).map_err(|fault| {
        assert_eq!(fault.reason, "Unauthenticated");
        fault.message
    })
}

fn ask(who: &Authenticator, token: &str) -> Result<Caller, String> {
    at(who, token, SystemTime::now())
}

fn of(namespace: &str) -> Caller {
    Caller::of_namespace(Namespace::new(namespace).unwrap())
}

#[test]
fn a_token_is_good_for_its_namespace() {
    let place = Place::new();
    let who = place.open();
    for _ in 0..2 {
        assert_eq!(ask(&who, &place.issuer.token("team", "trainer")).unwrap(), of("team"));
    }
    // Another account of the operator's namespace is no operator, nor is its name elsewhere.
    for (namespace, account) in [("rollwright", "default"), ("team", "rollwright-controllers")] {
        assert_eq!(ask(&who, &place.issuer.token(namespace, account)).unwrap(), of(namespace));
    }
    let fault = who.authenticate(None, SystemTime::now()).unwrap_err();
    assert!(fault.message.contains("service account token"), "{fault}");
}

/// Whoever is shown the controllers' token has nothing that is good elsewhere.
#[test]
fn the_operator_shows_a_token_for_the_receiver_alone() {
    let place = Place::new();
    let who = place.open();
    let token = |audiences: &[&str]| {
        place.issuer.token_for("rollwright", "rollwright-controllers", audiences)
    };
    assert_eq!(ask(&who, &token(&[OWN_AUDIENCE])).unwrap(), Caller::operator());
    for several in [
        &[AUDIENCE][..],
        &[AUDIENCE, OWN_AUDIENCE],
        &[OWN_AUDIENCE, "rollwright:team/simulated/other"],
        &[OWN_AUDIENCE, OWN_AUDIENCE],
    ] {
        let refused = ask(&who, &token(several)).unwrap_err();
        assert!(refused.contains(OWN_AUDIENCE), "{several:?}: {refused}");
    }
    let other = token(&["rollwright:team/simulated/other"]);
    assert!(ask(&who, &other).unwrap_err().contains("another audience"));
    // Without an own audience nobody is the operator.
    let mut config = place.config();
    config.tokens.as_mut().unwrap().own_audience = None;
    let who = config.open(SystemTime::now()).unwrap();
    for audience in [AUDIENCE, OWN_AUDIENCE] {
        assert!(ask(&who, &token(&[audience])).is_err(), "{audience}");
    }
}

#[test]
fn a_tenant_may_show_a_token_for_the_receiver_alone() {
    let place = Place::new();
    let who = place.open();
    for good in [&[OWN_AUDIENCE][..], &[AUDIENCE], &["api", OWN_AUDIENCE]] {
        let token = place.issuer.token_for("team", "gateway", good);
        assert_eq!(ask(&who, &token).unwrap(), of("team"), "{good:?}");
    }
    let token = place.issuer.token_for("team", "gateway", &["rollwright:other/queue/q"]);
    assert!(ask(&who, &token).unwrap_err().contains("another audience"));
}

#[test]
fn tokens_signed_with_rsa_are_taken() {
    let place = Place::new();
    let key = SigningKey::rsa(include_bytes!("rsa-2048.pk8"));
    place.publish(&json!({"keys": [{"kty": "oct", "kid": "x"}, key.jwk("rsa")]}).to_string());
    let who = place.open();
    let claims = place.issuer.claims("team", "trainer");
    let token = key.sign(&json!({"alg": "RS256", "kid": "rsa"}), &claims);
    assert_eq!(ask(&who, &token).unwrap(), of("team"));
    // The right key under another algorithm's name.
    for alg in ["ES256", "PS256", "RS384", "none"] {
        let token = key.sign(&json!({"alg": alg, "kid": "rsa"}), &claims);
        assert!(ask(&who, &token).unwrap_err().contains("signature"), "{alg}");
    }
}

/// A change of the claims.
type Change = fn(&mut Value);

#[test]
fn wrong_claims_are_refused() {
    let place = Place::new();
    let who = place.open();
    let changes: [(Change, &str); 13] = [
        (|claims| claims["iss"] = json!("https://elsewhere"), "another issuer"),
        (|claims| claims["aud"] = json!(["api"]), "audience `rollwright`"),
        (|claims| claims["aud"] = json!([]), "audience `rollwright`"),
        (|claims| claims["aud"] = json!("rollwright2"), "audience `rollwright`"),
        (|claims| claims["exp"] = json!(1), "expired"),
        (|claims| claims["exp"] = json!("never"), "neither"),
        (|claims| claims["exp"] = json!(-1), "neither"),
        (|claims| drop(claims.as_object_mut().unwrap().remove("exp")), "neither"),
        (|claims| claims["nbf"] = json!(u64::MAX), "not valid yet"),
        (
            |claims| drop(claims.as_object_mut().unwrap().remove("kubernetes.io")),
            "not of a service",
        ),
        (|claims| claims["kubernetes.io"]["namespace"] = json!("other"), "not of a service"),
        (|claims| claims["kubernetes.io"]["namespace"] = json!("a.b"), "not of a service"),
        (|claims| claims["sub"] = json!(OPERATOR), "not of a service"),
    ];
    for (change, expected) in changes {
        let mut claims = place.issuer.claims("team", "trainer");
        change(&mut claims);
        let refused = ask(&who, &place.issuer.sign(&claims)).unwrap_err();
        assert!(refused.contains(expected), "{expected}: {refused}");
    }
    let mut one = place.issuer.claims("team", "trainer");
    one["aud"] = json!("rollwright");
    assert_eq!(ask(&who, &place.issuer.sign(&one)).unwrap(), of("team"));
}

#[test]
fn a_token_ends_at_its_time_even_where_it_was_verified_before() {
    let place = Place::new();
    let who = place.open();
    let mut claims = place.issuer.claims("team", "trainer");
    (claims["nbf"], claims["exp"]) = (json!(1_000_000), json!(1_000_600));
    let token = place.issuer.sign(&claims);
    let second = |second| UNIX_EPOCH + Duration::from_secs(second);
    assert!(at(&who, &token, second(999_900)).unwrap_err().contains("not valid yet"));
    for good in [999_995, 1_000_300, 1_000_605] {
        assert_eq!(at(&who, &token, second(good)).unwrap(), of("team"), "{good}");
    }
    assert!(at(&who, &token, second(1_000_611)).unwrap_err().contains("expired"));
}

#[test]
fn forged_tokens_are_refused() {
    let place = Place::new();
    let who = place.open();
    let claims = place.issuer.claims("team", "trainer");
    let header = place.issuer.header();
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let refused = |token: String| ask(&who, &token).unwrap_err();

    // No signature at all.
    let none = json!({"alg": "none", "kid": header["kid"]});
    assert!(refused(format!("{}.{}.", part(&none), part(&claims))).contains("signature"));
    // The public key taken for a shared secret.
    let symmetric = json!({"alg": "HS256", "kid": header["kid"]});
    let message = format!("{}.{}", part(&symmetric), part(&claims));
    let published = place.issuer.jwks();
    let secrets: Value = serde_json::from_str(&published).unwrap();
    for secret in [published.as_str(), secrets["keys"][0]["x"].as_str().unwrap()] {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let tag = URL_SAFE_NO_PAD.encode(hmac::sign(&secret, message.as_bytes()));
        assert!(refused(format!("{message}.{tag}")).contains("signature"));
    }
    // Another's key, under our key's name and under its own, brought along in the header.
    let theirs = SigningKey::generate();
    assert!(refused(theirs.sign(&header, &claims)).contains("signature"));
    let brought = json!({"alg": "ES256", "kid": "theirs", "jwk": theirs.jwk("theirs")});
    assert!(refused(theirs.sign(&brought, &claims)).contains("not the API server's"));
    let nameless = json!({"alg": "ES256"});
    assert!(refused(theirs.sign(&nameless, &claims)).contains("not the API server's"));
    // Claims exchanged under a good signature, also of a token that was verified before.
    let good = place.issuer.sign(&claims);
    ask(&who, &good).unwrap();
    let parts: Vec<&str> = good.split('.').collect();
    let other = part(&place.issuer.claims("other", "trainer"));
    assert!(refused(format!("{}.{other}.{}", parts[0], parts[2])).contains("signature"));
    // An extension that must be understood.
    let critical = json!({"alg": "ES256", "kid": header["kid"], "crit": ["b64"], "b64": false});
    let other = SimulatedIssuer::new(ISSUER);
    assert!(refused(other.sign(&claims)).contains("signature"));
    assert!(refused(theirs.sign(&critical, &claims)).contains("neither"));
}

#[test]
fn rotated_keys_count_and_retired_ones_do_not() {
    let mut place = Place::new();
    let who = place.open();
    let start = SystemTime::now();
    let later = |seconds| start + Duration::from_secs(seconds);
    let old = place.issuer.token("team", "old");
    assert!(at(&who, &old, start).is_ok());
    place.issuer.rotate();
    let new = place.issuer.token("team", "new");
    assert!(at(&who, &new, later(1)).unwrap_err().contains("not the API server's"));
    place.publish(&place.issuer.jwks());
    assert!(at(&who, &new, later(2)).is_ok() && at(&who, &old, later(2)).is_ok());
    // A broken key set is not taken up.
    for broken in ["{", r#"{"keys": []}"#] {
        place.publish(broken);
        assert!(at(&who, &new, later(4)).is_ok() && at(&who, &old, later(4)).is_ok());
    }
    place.publish(&place.issuer.newest_jwks());
    assert!(at(&who, &new, later(6)).is_ok());
    assert!(at(&who, &old, later(6)).unwrap_err().contains("not the API server's"));
}

#[test]
fn api_keys_open_their_own_job_and_change_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys");
    let hex = "d0f631ca1ddba8db3bcfcb9e057cdc98d0379f1bee00e75a545147a27dadd982";
    replace(&path, &format!("# two jobs\na:0123456789abcdef-key\nb:sha256:{hex}\nc:{hex}\n"));
    let now = SystemTime::now();
    let who = AuthConfig::api_keys(&path).open(now).unwrap();
    let a = at(&who, "0123456789abcdef-key", now).unwrap();
    assert_eq!(a.job("").unwrap().as_str(), "a");
    assert_eq!(a.job("b").unwrap_err().reason, "Forbidden");
    assert!(!a.may_use(&JobId::new("b").unwrap()) && !a.may_operate());
    assert!(at(&who, "nonsense", now).is_err());
    assert!(who.authenticate(Some("Basic 0123456789abcdef-key"), now).is_err());
    assert!(who.authenticate(None, now).is_err());
    // 64 digits without the prefix are a key as any other.
    assert_eq!(at(&who, hex, now).unwrap().job("").unwrap().as_str(), "c");
    let later = now + Duration::from_secs(2);
    replace(&path, "a:fedcba9876543210-key\n");
    assert!(at(&who, "0123456789abcdef-key", later).is_err());
    assert!(at(&who, "fedcba9876543210-key", later).is_ok());
}

#[test]
fn keys_and_tokens_stand_beside_each_other() {
    let place = Place::new();
    let path = place.dir.path().join("keys");
    replace(&path, "math:0123456789abcdef-key\n");
    let namespace = Some(Namespace::new("team").unwrap());
    let config = AuthConfig { api_keys: Some(path), namespace, ..place.config() };
    let who = config.open(SystemTime::now()).unwrap();
    let job = JobId::new("team.math").unwrap();
    assert_eq!(ask(&who, "0123456789abcdef-key").unwrap(), Caller::of_job(job.clone()));
    assert!(ask(&who, &place.issuer.token("team", "trainer")).unwrap().may_use(&job));
    assert!(!ask(&who, &place.issuer.token("other", "trainer")).unwrap().may_use(&job));
    assert!(AuthConfig::default().open(SystemTime::now()).is_err());
}

proptest! {
    #[test]
    fn no_text_is_let_in_and_none_panics(text in any::<String>(), dots in prop::collection::vec("[A-Za-z0-9_-]{0,40}", 0..5)) {
        let place = Place::new();
        let who = place.open();
        let now = SystemTime::now();
        prop_assert!(who.authenticate(Some(&text), now).is_err());
        prop_assert!(at(&who, &text, now).is_err());
        prop_assert!(at(&who, &dots.join("."), now).is_err());
    }

    #[test]
    fn no_changed_token_is_let_in(at_byte in any::<prop::sample::Index>(), to in any::<char>(), cut in any::<bool>()) {
        let place = Place::new();
        let who = place.open();
        let token = place.issuer.token("team", "trainer");
        let index = at_byte.index(token.len());
        let changed = if cut {
            token[..index].to_owned()
        } else {
            format!("{}{to}{}", &token[..index], &token[index + 1..])
        };
        prop_assert!(changed == token || ask(&who, &changed).is_err());
    }

    #[test]
    fn no_claims_panic(name in "[ -~]{0,20}", number in any::<i64>()) {
        let place = Place::new();
        let who = place.open();
        for field in ["iss", "sub", "aud", "exp", "nbf", "kubernetes.io"] {
            for value in [json!(name), json!(number), json!([name]), json!({"namespace": name}), Value::Null] {
                let mut claims = place.issuer.claims("team", "trainer");
                claims[field] = value.clone();
                let signed = place.issuer.sign(&claims);
                // A wrong time or none of `nbf` may still be right.
                let may = matches!(field, "exp" | "nbf");
                prop_assert!(may || ask(&who, &signed).is_err(), "{field} = {value}");
            }
        }
    }

    #[test]
    fn no_key_set_panics(bytes in prop::collection::vec(any::<u8>(), 0..64), text in "[ -~]{0,64}") {
        let place = Place::new();
        let path = place.dir.path().join("jwks.json");
        let set = json!({"keys": [{"kty": "RSA", "kid": "k", "n": text, "e": text},
            {"kty": "EC", "crv": "P-256", "kid": text, "x": text, "y": "AA"}]});
        for content in [bytes, set.to_string().into_bytes()] {
            std::fs::write(&path, content).unwrap();
            if let Ok(who) = place.config().open(SystemTime::now()) {
                prop_assert!(ask(&who, &place.issuer.token("team", "trainer")).is_err());
            }
        }
    }
}
