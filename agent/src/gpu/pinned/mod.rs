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
use crate::policy::EnginePolicy;

/// A model's weights in memory of the node; locked while they are read.
type Slot = Arc<tokio::sync::Mutex<Option<Weak<dyn Image>>>>;

/// Engines whose weights the agent keeps. Those of an earlier agent are not taken over: the
/// memory was that agent's.
pub struct HostPinned {
    memory: Arc<dyn Memory>,
    gpus: Vec<Blocks>,
    policy: EnginePolicy,
    images: Mutex<BTreeMap<String, Slot>>,
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

fn kept(slot: &Slot) -> bool {
    slot.try_lock().is_ok_and(|slot| slot.as_ref().is_some_and(|image| image.strong_count() > 0))
}

/// A model's weights, where the policy lets engines read them, all files of it.
fn weights(policy: &EnginePolicy, model: &str) -> Result<Weights, Trouble> {
    let closed = |path: &dyn std::fmt::Display| {
        let why = format!("{path} is not there, or not in `engines.models` of the agent's policy");
        refused(Order::Launch, &why)
    };
    let path = policy.readable(model).ok_or_else(|| closed(&model))?;
    let weights =
        Weights::find(&path).map_err(|error| troubled(Order::Launch, &MemoryError::from(error)))?;
    if let Some(file) = weights.files().find(|file| !policy.holds(file)) {
        return Err(closed(&file.display()));
    }
    Ok(weights)
}

impl HostPinned {
    /// For a node of so many GPUs, with the models that the policy lets engines read.
    pub fn new(memory: Arc<dyn Memory>, gpus: u32, policy: EnginePolicy) -> Self {
        let gpus = (0..gpus).map(|_| Blocks::new(memory.blocks())).collect();
        let (images, engines, http) = (Mutex::default(), Mutex::default(), Http::default());
        Self { memory, gpus, policy, images, engines, http }
    }

    fn server(&self, engine: EngineId) -> Result<Arc<Server>, Trouble> {
        let server = lock(&self.engines).get(&engine).cloned();
        server.ok_or_else(|| Trouble::Died("its weights were an earlier agent's".into()))
    }

    /// A model's weights; those that another engine has are shared.
    async fn image(&self, model: &str) -> Result<Arc<dyn Image>, Trouble> {
        let what = Order::Launch;
        let slot = {
            let mut images = lock(&self.images);
            images.retain(|_, slot| Arc::strong_count(slot) > 1 || kept(slot));
            Arc::clone(images.entry(model.to_owned()).or_default())
        };
        // Whoever reads them keeps the lock, even when nobody waits for it any more.
        let mut slot = slot.lock_owned().await;
        if let Some(image) = slot.as_ref().and_then(Weak::upgrade) {
            return Ok(image);
        }
        let (memory, policy, model) =
            (Arc::clone(&self.memory), self.policy.clone(), model.to_owned());
        blocking(what, move || {
            let weights = weights(&policy, &model)?;
            let image = memory.pin(&weights).map_err(|error| troubled(what, &error))?;
            let image: Arc<dyn Image> = Arc::from(image);
            *slot = Some(Arc::downgrade(&image));
            Ok(image)
        })
        .await
    }

    async fn restore(&self, what: Order, server: &Arc<Server>) -> Result<(), Trouble> {
        if lock(&server.lent).is_some() {
            return Err(refused(what, "it has its weights already"));
        }
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

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// No GPU: it counts how often weights are read.
    #[derive(Default)]
    struct Counted(AtomicUsize);

    struct Nothing;

    impl Image for Nothing {
        fn bytes(&self) -> &[u8] {
            &[]
        }
    }

    impl Memory for Counted {
        fn kind(&self) -> &'static str {
            "none"
        }

        fn block_bytes(&self) -> u64 {
            1
        }

        fn blocks(&self) -> usize {
            0
        }

        fn pin(&self, _: &Weights) -> Result<Box<dyn Image>, MemoryError> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Ok(Box::new(Nothing))
        }

        fn export(&self, _: u32) -> Result<Vec<OwnedFd>, MemoryError> {
            Ok(Vec::new())
        }

        fn restore(&self, _: u32, _: &dyn Image, _: &[usize]) -> Result<(), MemoryError> {
            Ok(())
        }
    }

    fn file(path: &Path) {
        let header = br"{}";
        std::fs::write(path, [&(header.len() as u64).to_le_bytes()[..], header].concat()).unwrap();
    }

    fn pinned(models: &Path) -> (Arc<Counted>, HostPinned) {
        let memory = Arc::new(Counted::default());
        let models = vec![format!("{}/*", models.display())];
        let policy = EnginePolicy { models, ..EnginePolicy::default() };
        (Arc::clone(&memory), HostPinned::new(memory, 1, policy))
    }

    #[tokio::test]
    async fn weights_that_several_want_at_once_are_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("judge.safetensors");
        file(&model);
        let (memory, pinned) = pinned(dir.path());
        let model = model.to_str().unwrap();
        let (one, two) = tokio::join!(pinned.image(model), pinned.image(model));
        assert!(Arc::ptr_eq(&one.unwrap(), &two.unwrap()));
        assert_eq!(memory.0.load(Ordering::SeqCst), 1);
        drop(pinned.image(model).await.unwrap());
        assert_eq!(memory.0.load(Ordering::SeqCst), 2, "nobody had them any more");
    }

    #[tokio::test]
    async fn weights_that_the_policy_closes_are_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for made in ["models/judge", "models/hub", "secrets"] {
            std::fs::create_dir_all(at(made)).unwrap();
        }
        file(&at("secrets/model.safetensors"));
        file(&at("models/hub/blob"));
        symlink(at("secrets"), at("models/out")).unwrap();
        let inner = at("models/judge/model.safetensors");
        symlink(at("secrets/model.safetensors"), &inner).unwrap();
        let (memory, pinned) = pinned(&at("models"));
        for closed in ["secrets", "models/out", "models/judge"] {
            let refused = pinned.image(at(closed).to_str().unwrap()).await.err().unwrap();
            assert!(refused.to_string().contains("engines.models"), "{closed}: {refused}");
        }
        assert_eq!(memory.0.load(Ordering::SeqCst), 0);
        // As a hub's cache has them: links within what may be read.
        std::fs::remove_file(&inner).unwrap();
        symlink("../hub/blob", &inner).unwrap();
        assert!(pinned.image(at("models/judge").to_str().unwrap()).await.is_ok());
    }
}
