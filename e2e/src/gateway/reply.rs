//! Streamed replies, read event by event.

use anyhow::{Context as _, bail};
use reqwest::Response;
use serde_json::{Value, json};

/// A streamed reply.
#[derive(Debug)]
pub struct Stream {
    response: Response,
    buffer: Vec<u8>,
    /// What it said so far.
    pub text: String,
}

/// How a streamed reply ended.
#[derive(Debug)]
pub enum StreamEnd {
    /// With `[DONE]`.
    Done(String),
    /// With an error in an event, or broken off (`null`).
    Failed(Value),
}

impl Stream {
    pub(super) async fn of(response: Response) -> anyhow::Result<Self> {
        if response.status() != 200 {
            bail!("{}: {}", response.status(), response.text().await?);
        }
        Ok(Self { response, buffer: Vec::new(), text: String::new() })
    }

    /// The next event; `None` at the end.
    async fn event(&mut self) -> anyhow::Result<Option<String>> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\n\n") {
                let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let event = String::from_utf8(event)?;
                let data = event.trim_end().strip_prefix("data: ");
                return Ok(Some(data.with_context(|| format!("no data: {event}"))?.to_owned()));
            }
            match self.response.chunk().await? {
                Some(bytes) => self.buffer.extend_from_slice(&bytes),
                None => return Ok(None),
            }
        }
    }

    /// Reads until it has said `length` bytes.
    pub async fn until_length(&mut self, length: usize) -> anyhow::Result<()> {
        while self.text.len() < length {
            let event = self.event().await?.context("it ended early")?;
            if let Some(end) = self.take(&event)? {
                bail!("it ended early: {end:?}");
            }
        }
        Ok(())
    }

    /// Reads it to its end.
    pub async fn end(mut self) -> StreamEnd {
        loop {
            match self.event().await {
                Ok(Some(event)) => match self.take(&event) {
                    Ok(None) => {}
                    Ok(Some(end)) => return end,
                    Err(error) => return StreamEnd::Failed(json!(error.to_string())),
                },
                Ok(None) | Err(_) => return StreamEnd::Failed(Value::Null),
            }
        }
    }

    fn take(&mut self, event: &str) -> anyhow::Result<Option<StreamEnd>> {
        if event == "[DONE]" {
            return Ok(Some(StreamEnd::Done(std::mem::take(&mut self.text))));
        }
        let event: Value = serde_json::from_str(event)?;
        if let Some(error) = event.get("error") {
            return Ok(Some(StreamEnd::Failed(error.clone())));
        }
        self.text.push_str(event["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
        Ok(None)
    }
}

impl StreamEnd {
    /// The text of a whole reply.
    pub fn done(self) -> anyhow::Result<String> {
        match self {
            Self::Done(text) => Ok(text),
            Self::Failed(error) => bail!("it failed: {error}"),
        }
    }

    /// The error of one that failed.
    pub fn failed(self) -> anyhow::Result<Value> {
        match self {
            Self::Failed(error) => Ok(error),
            Self::Done(text) => bail!("it ended well: {text}"),
        }
    }
}
