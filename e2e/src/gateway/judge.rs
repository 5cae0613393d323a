//! A **fake** of a serverless reward service: it takes calls, and answers none by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What a caller has sent at most before it is taken for a whole call.
const HEAD: usize = 64 << 10;

/// The fake.
#[derive(Debug)]
pub struct Judge {
    /// Where it listens.
    pub url: String,
    calls: Arc<Calls>,
    answer: watch::Sender<Option<f64>>,
    server: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Calls {
    begun: AtomicUsize,
    left: AtomicUsize,
}

impl Judge {
    /// Listens on the loopback.
    pub async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/score", listener.local_addr()?);
        let calls = Arc::<Calls>::default();
        let (answer, answers) = watch::channel(None);
        let counted = Arc::clone(&calls);
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&counted), answers.clone()));
            }
        });
        Ok(Self { url, calls, answer, server })
    }

    /// Calls that have come.
    pub fn begun(&self) -> usize {
        self.calls.begun.load(Ordering::SeqCst)
    }

    /// Calls whose connection was closed before they were answered.
    pub fn left(&self) -> usize {
        self.calls.left.load(Ordering::SeqCst)
    }

    /// From now on, every call gets this reward, also those that wait.
    pub fn answer(&self, reward: f64) {
        self.answer.send_replace(Some(reward));
    }
}

impl Drop for Judge {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// One call a connection.
async fn serve(
    mut stream: TcpStream,
    calls: Arc<Calls>,
    mut answers: watch::Receiver<Option<f64>>,
) {
    let mut read = Vec::new();
    while !whole(&read) && read.len() < HEAD {
        if stream.read_buf(&mut read).await.unwrap_or(0) == 0 {
            return;
        }
    }
    calls.begun.fetch_add(1, Ordering::SeqCst);
    let mut byte = [0];
    let reward = tokio::select! {
        reward = answers.wait_for(Option::is_some) => reward.ok().and_then(|reward| *reward),
        // Nothing more is sent: this is its end.
        _ = stream.read(&mut byte) => None,
    };
    let Some(reward) = reward else {
        calls.left.fetch_add(1, Ordering::SeqCst);
        return;
    };
    let body = format!("{{\"reward\":{reward}}}");
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n";
    let reply = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    // A caller who has left meanwhile misses it.
    let _ = stream.write_all(reply.as_bytes()).await;
}

/// Whether a request is there with the body that its head announces.
fn whole(read: &[u8]) -> bool {
    let text = String::from_utf8_lossy(read);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    length.is_none_or(|length| body.len() >= length)
}
