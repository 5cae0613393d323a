//! The routes over a real socket: events that are resumed, and callers that go away.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests too

mod api_common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use api_common::Api;
use rollwright_core::ids::{GroupId, TrajectoryId};
use rollwright_core::version::Version;
use rollwright_gateway::events::Event;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// Generous: only a defect takes as long.
const LIMIT: Duration = Duration::from_secs(30);

async fn serve(api: &Api) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = api.router();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// One connection that follows events.
struct Follower(BufReader<TcpStream>);

impl Follower {
    async fn connect(address: SocketAddr, query: &str, last: Option<&str>) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let last = last.map_or_else(String::new, |id| format!("Last-Event-ID: {id}\r\n"));
        let request = format!("GET /rollout/v1/events{query} HTTP/1.1\r\nHost: x\r\n{last}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut follower = Self(BufReader::new(stream));
        let head = follower.until(":").await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(head.contains("text/event-stream"), "{head}");
        follower
    }

    /// Reads lines up to one that begins so.
    async fn until(&mut self, begin: &str) -> String {
        let mut text = String::new();
        let read = async {
            loop {
                let mut line = String::new();
                assert!(self.0.read_line(&mut line).await.unwrap() > 0, "closed after: {text}");
                text.push_str(&line);
                if line.starts_with(begin) {
                    return;
                }
            }
        };
        tokio::time::timeout(LIMIT, read).await.unwrap_or_else(|_| panic!("no `{begin}`"));
        text
    }

    /// The next event's id and name.
    async fn event(&mut self) -> (Option<String>, String) {
        let text = self.until("data: ").await;
        let field =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        (field("id: "), field("event: ").unwrap())
    }
}

fn start(group: &str, number: u32) -> Event {
    Event::Start {
        trajectory: TrajectoryId::new(&format!("{group}/{number}")).unwrap(),
        group: GroupId::new(group).unwrap(),
    }
}

fn is(id: u64, name: &str) -> (Option<String>, String) {
    (Some(id.to_string()), name.to_owned())
}

#[tokio::test]
async fn events_are_followed_and_resumed() {
    let api = Api::new();
    let address = serve(&api).await;
    let hub = Arc::clone(&api.double.hub);

    let mut all = Follower::connect(address, "", None).await;
    let mut one = Follower::connect(address, "?group=g2", None).await;
    hub.publish(&start("g1", 0));
    hub.publish(&start("g2", 0));
    hub.publish(&Event::Version(Version(8)));
    assert_eq!(all.event().await, is(1, "start"));
    assert_eq!(all.event().await, is(2, "start"));
    assert_eq!(all.event().await, is(3, "version"));
    assert_eq!(one.event().await, is(2, "start"));
    assert_eq!(one.event().await, is(3, "version"));

    // A third is too many, and a caller that closes makes room.
    let refused = reqwest::get(format!("http://{address}/rollout/v1/events")).await.unwrap();
    assert_eq!(refused.status(), 429);
    assert!(refused.headers().contains_key("retry-after"));
    drop((all, one));
    tokio::time::timeout(LIMIT, async {
        while hub.subscribers() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("subscriptions outlive their connections");

    hub.publish(&start("g1", 1));
    hub.publish(&start("g2", 1));
    let mut back = Follower::connect(address, "?group=g1", Some("3")).await;
    assert_eq!(back.event().await, is(4, "start"));
    hub.publish(&start("g1", 2));
    assert_eq!(back.event().await, is(6, "start"));
    drop(back);
    // The ring holds four: what came before is forgotten, and that is said.
    let mut late = Follower::connect(address, "", Some("1")).await;
    assert_eq!(late.event().await, is(6, "gap"));
    hub.publish(&start("g1", 3));
    assert_eq!(late.event().await, is(7, "start"));
    // The end of the hub ends the connection properly.
    hub.close();
    let mut rest = String::new();
    tokio::time::timeout(LIMIT, late.0.get_mut().shutdown()).await.unwrap().unwrap();
    tokio::time::timeout(LIMIT, late.0.read_to_string(&mut rest)).await.unwrap().unwrap();
    assert!(rest.ends_with("0\r\n\r\n"), "{rest:?}");
}

#[tokio::test]
async fn a_caller_that_goes_away_stops_waiting() {
    let api = Api::new();
    let address = serve(&api).await;
    api.double.hang.store(true, Ordering::SeqCst);
    let mut waiting = api.double.waiting.subscribe();
    let mut callers = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request =
            "POST /rollout/v1/batches/take HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        callers.push(stream);
    }
    let mut reach = async |count: usize| {
        let reached = tokio::time::timeout(LIMIT, waiting.wait_for(|waiting| *waiting == count));
        reached.await.unwrap_or_else(|_| panic!("never {count} callers")).unwrap();
    };
    reach(3).await;
    callers.pop();
    reach(2).await;
    callers.clear();
    reach(0).await;
}

#[tokio::test]
async fn a_batch_that_breaks_off_is_an_error_at_the_caller() {
    let api = Api::new();
    let address = serve(&api).await;
    *api.double.records.lock().unwrap() = (100, 50);
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("http://{address}/rollout/v1/batches/take");
    let response = client.post(url).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(response.bytes().await.is_err());
}
