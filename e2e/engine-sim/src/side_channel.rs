//! The side channel between instances: one line of JSON asks, one answers. Real engines have
//! ZMQ, RDMA and a bootstrap server in its place.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::engine::{Engine, Kv, Wanted};

/// The longest line.
const LINE: u64 = 64 << 10;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Kv(Kv),
    Error(String),
}

/// Asks the instance at `from`.
pub(crate) async fn take(from: &str, wanted: &Wanted) -> Result<Kv, String> {
    let broken = |error: std::io::Error| format!("the instance at {from} is gone: {error}");
    let mut stream = TcpStream::connect(from).await.map_err(broken)?;
    let mut line = serde_json::to_vec(wanted).map_err(|error| error.to_string())?;
    line.push(b'\n');
    stream.write_all(&line).await.map_err(broken)?;
    let mut answer = String::new();
    BufReader::new(stream).take(LINE).read_line(&mut answer).await.map_err(broken)?;
    match serde_json::from_str(&answer) {
        Ok(Answer::Kv(kv)) => Ok(kv),
        Ok(Answer::Error(why)) => Err(why),
        Err(_) => Err(format!("the instance at {from} is gone")),
    }
}

/// Answers for ever; dropping it closes what is open.
pub(crate) async fn serve(engine: Arc<Engine>, listener: TcpListener) {
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            Ok((stream, _)) = listener.accept() => {
                let engine = Arc::clone(&engine);
                open.spawn(async move {
                    // Whoever asked has seen it break.
                    drop(answer(&engine, stream).await);
                });
            }
            Some(_) = open.join_next() => {}
        }
    }
}

async fn answer(engine: &Engine, mut stream: TcpStream) -> std::io::Result<()> {
    let (read, mut write) = stream.split();
    let mut read = BufReader::new(read).take(LINE);
    let mut line = String::new();
    read.read_line(&mut line).await?;
    let answer = match serde_json::from_str(&line) {
        Err(error) => Answer::Error(error.to_string()),
        Ok(Wanted::Kept { engine: of, request }) => {
            engine.read_kept(&of, &request).map_or_else(Answer::Error, Answer::Kv)
        }
        Ok(Wanted::Room(room)) => {
            let kv = engine.enter(room);
            let mut rest = [0];
            tokio::select! {
                kv = kv => kv.map_or_else(|_| Answer::Error("the prefill is gone".into()), Answer::Kv),
                _ = read.read(&mut rest) => {
                    engine.leave(room);
                    return Ok(());
                }
            }
        }
    };
    let mut line = serde_json::to_vec(&answer)?;
    line.push(b'\n');
    write.write_all(&line).await
}
