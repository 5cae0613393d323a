//! Who reads `/metrics`, and how many at once.
#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use rollwright_auth::{MOST_CONNECTIONS, MetricsError, MetricsListen};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const LIMIT: Duration = Duration::from_mins(1);

async fn serve(token_file: Option<PathBuf>) -> SocketAddr {
    let listen = MetricsListen { addr: ([127, 0, 0, 1], 0).into(), token_file };
    let listener = listen.bind().await.unwrap();
    let addr = listener.addr().unwrap();
    let probes = Router::new().route("/healthz", get(async || "ok"));
    let render = || Ok::<_, String>(b"up 1\n".to_vec());
    tokio::spawn(listener.serve(render, probes, std::future::pending()));
    addr
}

/// The status of an answer.
async fn ask(addr: SocketAddr, path: &str, token: Option<&str>) -> u16 {
    let bearer = token.map(|token| format!("authorization: Bearer {token}\r\n"));
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{}\r\n",
        bearer.unwrap_or_default()
    );
    let exchange = async {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.split(' ').nth(1).unwrap().parse().unwrap()
    };
    tokio::time::timeout(LIMIT, exchange).await.unwrap()
}

/// Puts a file in place as the kubelet does: whole, under a new inode.
fn replace(path: &Path, text: &str) {
    let fresh = path.with_extension("fresh");
    std::fs::write(&fresh, text).unwrap();
    std::fs::rename(&fresh, path).unwrap();
}

fn hash_of(token: &str) -> String {
    let mut text = "sha256:".to_owned();
    for byte in Sha256::digest(token.as_bytes()) {
        write!(text, "{byte:02x}").unwrap();
    }
    text + "\n"
}

#[tokio::test]
async fn a_file_holds_the_token_or_its_hash_and_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    for (first, second) in [("one\n".to_owned(), hash_of("two")), (hash_of("one"), "two".into())] {
        replace(&file, &first);
        let addr = serve(Some(file.clone())).await;
        assert_eq!(ask(addr, "/metrics", Some("one")).await, 200);
        for wrong in [None, Some("two"), Some(""), Some(hash_of("one").trim())] {
            assert_eq!(ask(addr, "/metrics", wrong).await, 401, "{wrong:?}");
        }
        assert_eq!(ask(addr, "/healthz", None).await, 200);
        replace(&file, &second);
        let changed = async {
            while ask(addr, "/metrics", Some("two")).await != 200 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LIMIT, changed).await.unwrap();
        assert_eq!(ask(addr, "/metrics", Some("one")).await, 401);
    }
}

#[tokio::test]
async fn a_file_without_a_token_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    for wrong in ["", "\n", "sha256:", "sha256:0123"] {
        replace(&file, wrong);
        let addr = ([127, 0, 0, 1], 0).into();
        let refused = MetricsListen { addr, token_file: Some(file.clone()) }.bind().await;
        assert!(matches!(refused, Err(MetricsError::NotToken(_))), "{wrong:?}");
    }
    let everybody = MetricsListen { addr: ([0, 0, 0, 0], 0).into(), token_file: None };
    assert!(matches!(everybody.bind().await, Err(MetricsError::NoToken(_))));
}

#[tokio::test]
async fn who_holds_many_connections_open_keeps_nobody_out() {
    let addr = serve(None).await;
    let mut idle = Vec::new();
    for _ in 0..=MOST_CONNECTIONS {
        idle.push(TcpStream::connect(addr).await.unwrap());
    }
    assert_eq!(ask(addr, "/healthz", None).await, 200);
    // The oldest made way.
    let ended = tokio::time::timeout(LIMIT, idle[0].read(&mut [0; 1])).await.unwrap();
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
}
