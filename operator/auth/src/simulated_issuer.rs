//! A simulated API server, for tests: it signs service account tokens with keys of its own
//! and publishes them as a key set.
#![expect(clippy::unwrap_used, clippy::missing_panics_doc, reason = "for tests")]

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING as ES256, EcdsaKeyPair, KeyPair as _, RSA_PKCS1_SHA256,
    RsaKeyPair, RsaPublicKeyComponents,
};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::{AUDIENCE, TokenConfig};

/// The own audience of those who trust it.
pub const OWN_AUDIENCE: &str = "rollwright:team/simulated/receiver";
/// How long its tokens are good.
const LIFE: Duration = Duration::from_hours(1);

/// A key that signs.
#[derive(Debug)]
pub enum SigningKey {
    /// For ES256.
    Ec(EcdsaKeyPair),
    /// For RS256.
    Rsa(RsaKeyPair),
}

impl SigningKey {
    /// A new one for ES256.
    pub fn generate() -> Self {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(&ES256, &random).unwrap();
        Self::Ec(EcdsaKeyPair::from_pkcs8(&ES256, document.as_ref(), &random).unwrap())
    }

    /// An RSA key in PKCS #8.
    pub fn rsa(pkcs8: &[u8]) -> Self {
        Self::Rsa(RsaKeyPair::from_pkcs8(pkcs8).unwrap())
    }

    /// The public half, as a JSON Web Key.
    pub fn jwk(&self, id: &str) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match self {
            Self::Ec(pair) => {
                let point = pair.public_key().as_ref();
                let (x, y) = (text(&point[1..33]), text(&point[33..]));
                json!({"use": "sig", "kty": "EC", "kid": id, "crv": "P-256", "alg": "ES256", "x": x, "y": y})
            }
            Self::Rsa(pair) => {
                let public = RsaPublicKeyComponents::<Vec<u8>>::from(pair.public());
                let (n, e) = (text(&public.n), text(&public.e));
                json!({"use": "sig", "kty": "RSA", "kid": id, "alg": "RS256", "n": n, "e": e})
            }
        }
    }

    /// A token of this header and these claims, whatever they say.
    pub fn sign(&self, header: &Value, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", part(header), part(claims));
        let random = SystemRandom::new();
        let signature = match self {
            Self::Ec(pair) => pair.sign(&random, message.as_bytes()).unwrap().as_ref().to_vec(),
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message.as_bytes(), &mut signature).unwrap();
                signature
            }
        };
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// The simulated API server.
#[derive(Debug)]
pub struct SimulatedIssuer {
    /// Its `iss`.
    pub issuer: String,
    keys: Vec<(String, SigningKey)>,
}

impl SimulatedIssuer {
    /// With one ES256 key.
    pub fn new(issuer: &str) -> Self {
        let mut new = Self { issuer: issuer.to_owned(), keys: Vec::new() };
        new.rotate();
        new
    }

    /// From now on it signs with a new key; the old ones stay published.
    pub fn rotate(&mut self) {
        let id = format!("key-{}", self.keys.len());
        self.keys.push((id, SigningKey::generate()));
    }

    /// What it publishes.
    pub fn jwks(&self) -> String {
        let keys: Vec<Value> = self.keys.iter().map(|(id, key)| key.jwk(id)).collect();
        json!({ "keys": keys }).to_string()
    }

    /// What it publishes once it has done away with all keys but the newest.
    pub fn newest_jwks(&self) -> String {
        let (id, key) = self.keys.last().unwrap();
        json!({ "keys": [key.jwk(id)] }).to_string()
    }

    /// The claims of a service account's token, good for an hour from now.
    pub fn claims(&self, namespace: &str, account: &str) -> Value {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        json!({
            "iss": self.issuer,
            "sub": format!("system:serviceaccount:{namespace}:{account}"),
            "aud": [AUDIENCE],
            "iat": now,
            "nbf": now,
            "exp": now + LIFE.as_secs(),
            "kubernetes.io": {
                "namespace": namespace,
                "serviceaccount": {"name": account, "uid": "5c8b2f3e"},
            },
        })
    }

    /// A header and the newest key.
    pub fn header(&self) -> Value {
        json!({"alg": "ES256", "kid": self.keys.last().unwrap().0})
    }

    /// A token with these claims, signed by the newest key.
    pub fn sign(&self, claims: &Value) -> String {
        self.keys.last().unwrap().1.sign(&self.header(), claims)
    }

    /// A token of a service account.
    pub fn token(&self, namespace: &str, account: &str) -> String {
        self.sign(&self.claims(namespace, account))
    }

    /// A token of a service account for these audiences alone.
    pub fn token_for(&self, namespace: &str, account: &str, audiences: &[&str]) -> String {
        let mut claims = self.claims(namespace, account);
        claims["aud"] = json!(audiences);
        self.sign(&claims)
    }

    /// Whose tokens count that are verified with the key set in `jwks`; `operators` may
    /// operate.
    pub fn trusted(&self, jwks: impl Into<std::path::PathBuf>, operators: &[&str]) -> TokenConfig {
        TokenConfig {
            jwks: jwks.into(),
            issuer: self.issuer.clone(),
            audience: AUDIENCE.to_owned(),
            own_audience: Some(OWN_AUDIENCE.to_owned()),
            operators: operators.iter().map(|subject| (*subject).to_owned()).collect(),
        }
    }
}
