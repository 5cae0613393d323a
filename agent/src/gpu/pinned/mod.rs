//! `HostPinned`: the agent keeps a model's weights once in memory of the node, and copies
//! them to GPU memory of its own, which the server maps at a fixed address. So a restore
//! allocates nothing and an evict copies nothing.
//!
//! GPU memory is in blocks. A server is given a descriptor of each at its start and is told
//! at each restore which of them hold its weights; so services share a GPU whatever
//! was lent before. The protocol is in `docs/reward-services.md`.

mod blocks;
mod link;
mod memory;
mod weights;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use async_trait::async_trait;
use rollwright_core::gpu::{EngineId, Order, Trouble};
use serde_json::Value;

use self::blocks::{Blocks, Lease};
use self::link::{Hello, Link};
pub use self::memory::{Image, Memory, MemoryError};
pub use self::weights::{Weights, WeightsError};
use super::http::Http;
use super::launch::Program;
use super::mover::Mover;

/// Weights in memory of the node, once each.
type Images = BTreeMap<String, Weak<dyn Image>>;

/// Engines whose weights the agent keeps. Those of an earlier agent are not taken over: the
/// memory was that agent's.
pub struct HostPinned {
    memory: Arc<dyn Memory>,
    gpus: Vec<Blocks>,
    images: Mutex<Images>,
    engines: Mutex<BTreeMap<EngineId, Arc<Server>>>,
    http: Http,
}

/// A server, as its one mover sees it.
struct Server {
    image: Arc<dyn Image>,
    gpu: u32,
    link: Mutex<Link>,
    lent: Mutex<Option<Arc<Lease>>>,
}

impl std::fmt::Debug for HostPinned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostPinned").field("gpus", &self.gpus).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused(what: Order, why: &(impl ToString + ?Sized)) -> Trouble {
    Trouble::Refused(what, why.to_string())
}

fn troubled(what: Order, error: &MemoryError) -> Trouble {
    match error {
        MemoryError::Host { .. } => Trouble::HostMemoryShort(error.to_string()),
        MemoryError::Weights(_) | MemoryError::Device { .. } => refused(what, error),
    }
}

/// What blocks a thread, off the runtime's own.
async fn blocking<T: Send + 'static>(
    what: Order,
    work: impl FnOnce() -> Result<T, Trouble> + Send + 'static,
) -> Result<T, Trouble> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| refused(what, &error))?
}

impl HostPinned {
    /// For a node of so many GPUs.
    pub fn new(memory: Arc<dyn Memory>, gpus: u32) -> Self {
        let gpus = (0..gpus).map(|_| Blocks::new(memory.blocks())).collect();
        let (images, engines, http) = (Mutex::default(), Mutex::default(), Http::default());
        Self { memory, gpus, images, engines, http }
    }

    fn server(&self, engine: EngineId) -> Result<Arc<Server>, Trouble> {
        let server = lock(&self.engines).get(&engine).cloned();
        server.ok_or_else(|| Trouble::Died("its weights were an earlier agent's".into()))
    }

    /// A model's weights; those that another engine has are shared.
    async fn image(&self, model: &str) -> Result<Arc<dyn Image>, Trouble> {
        if let Some(image) = lock(&self.images).get(model).and_then(Weak::upgrade) {
            return Ok(image);
        }
        let (memory, path) = (Arc::clone(&self.memory), model.to_owned());
        let image: Arc<dyn Image> = blocking(Order::Launch, move || {
            let image = Weights::find(Path::new(&path)).map_err(MemoryError::from);
            let image = image.and_then(|weights| memory.pin(&weights));
            image.map(Arc::from).map_err(|error| troubled(Order::Launch, &error))
        })
        .await?;
        let mut images = lock(&self.images);
        images.retain(|_, image| image.strong_count() > 0);
        images.insert(model.to_owned(), Arc::downgrade(&image));
        Ok(image)
    }

    async fn restore(&self, what: Order, server: &Arc<Server>) -> Result<(), Trouble> {
        let bytes = server.image.bytes().len() as u64;
        let count = bytes.div_ceil(self.memory.block_bytes()) as usize;
        let home = &self.gpus[server.gpu as usize];
        let lease = home.take(count).ok_or_else(|| refused(what, "the GPU's arena is full"))?;
        let lease = Arc::new(lease);
        *lock(&server.lent) = Some(Arc::clone(&lease));
        let (memory, copied) = (Arc::clone(&self.memory), Arc::clone(server));
        let (mapped, held) = (Arc::clone(server), Arc::clone(&lease));
        // A copy that nobody waits for any more still has its blocks.
        let copy = blocking(what, move || {
            let done = memory.restore(copied.gpu, &*copied.image, &held.blocks);
            done.map_err(|error| troubled(what, &error))
        });
        let map = blocking(what, move || {
            let done = lock(&mapped.link).attach(&lease.blocks);
            done.map_err(|error| refused(what, &error))
        });
        tokio::try_join!(copy, map)?;
        let server = Arc::clone(server);
        blocking(what, move || lock(&server.link).serve().map_err(|error| refused(what, &error)))
            .await
    }
}

#[async_trait]
impl Mover for HostPinned {
    async fn started(&self, program: &Program) -> Result<(), Trouble> {
        let what = Order::Launch;
        if program.spec.degree != 1 {
            return Err(refused(what, "HostPinned is for engines of one GPU: use EngineSleep"));
        }
        let gpu = program.chunk.start();
        if gpu as usize >= self.gpus.len() {
            return Err(refused(what, &format!("the node has no GPU {gpu}")));
        }
        let image = self.image(&program.spec.model).await?;
        let (memory, socket) = (Arc::clone(&self.memory), program.arena.clone());
        let bytes = image.bytes().len() as u64;
        let link = blocking(what, move || {
            let blocks = memory.export(gpu).map_err(|error| troubled(what, &error))?;
            let hello = Hello { kind: memory.kind(), block_bytes: memory.block_bytes(), bytes };
            Link::open(&socket, hello, &blocks).map_err(|error| refused(what, &error))
        })
        .await?;
        let (link, lent) = (Mutex::new(link), Mutex::default());
        let server = Arc::new(Server { image, gpu, link, lent });
        lock(&self.engines).insert(program.engine, Arc::clone(&server));
        self.restore(what, &server).await
    }

    async fn wake(&self, program: &Program) -> Result<(), Trouble> {
        let server = self.server(program.engine)?;
        self.restore(Order::Wake, &server).await
    }

    async fn evict(&self, program: &Program) -> Result<(), Trouble> {
        let server = self.server(program.engine)?;
        blocking(Order::Evict, move || {
            let done = lock(&server.link).detach();
            done.map_err(|error| refused(Order::Evict, &error))?;
            lock(&server.lent).take();
            Ok(())
        })
        .await
    }

    async fn is_asleep(&self, program: &Program) -> Result<bool, Trouble> {
        self.server(program.engine)?;
        let reply = self.http.get(&format!("{}/is_sleeping", program.url)).await;
        let asleep = reply.map_err(Trouble::Died)?.get("is_sleeping").and_then(Value::as_bool);
        asleep.ok_or_else(|| Trouble::Died("it did not say whether it sleeps".into()))
    }

    async fn gone(&self, engine: EngineId) {
        lock(&self.engines).remove(&engine);
    }

    fn lent(&self, engine: EngineId) -> u64 {
        let server = lock(&self.engines).get(&engine).cloned();
        let lent = server.and_then(|server| lock(&server.lent).clone());
        lent.map_or(0, |lease| lease.blocks.len() as u64 * self.memory.block_bytes())
    }
}
