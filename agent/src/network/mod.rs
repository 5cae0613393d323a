//! Networks for templates that ask for one: a bridge for each distinct set of
//! rules, with what must not be reached dropped by the node's packet filter.

pub mod rules;

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;

use bollard::errors::Error;
use bollard::models::NetworkCreateRequest;
use bollard::query_parameters::ListNetworksOptionsBuilder;
use rollwright_core::fault::Fault;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::sync::Mutex;

use crate::docker::Engine;
use crate::docker::labels::{self, Owner};
use crate::fault;
use rules::{RuleSet, bridges, chains};

/// Docker's name for no network at all.
pub const NONE: &str = "none";
/// Most networks at a time: Docker's default address pools hold about 30.
pub const MAX_NETWORKS: usize = 16;

/// The bridges of this agent.
#[derive(Debug)]
pub struct Networks {
    engine: Engine,
    owner: Owner,
    /// Sandboxes on each network. Locked over a whole change: networks are few
    /// and change rarely, and half-made rules must not be seen.
    users: Mutex<HashMap<String, usize>>,
}

impl Networks {
    /// Networks of one agent.
    pub fn new(engine: Engine, owner: Owner) -> Self {
        Self { engine, owner, users: Mutex::default() }
    }

    /// Makes the network of these rules ready for one more sandbox; its name.
    pub async fn acquire(&self, rules: &RuleSet) -> Result<String, Fault> {
        let name = rules.name(&self.owner.id);
        let mut users = self.users.lock().await;
        if !users.contains_key(&name) {
            if users.len() >= MAX_NETWORKS {
                return Err(fault::user(
                    "TooManyNetworks",
                    format!(
                        "sandboxes on this node use {MAX_NETWORKS} different sets of network \
                         rules already: let templates share their `network.allow`"
                    ),
                ));
            }
            // Rules first: the bridge's name is known, and no packet gets ahead of them.
            install(&name, rules).await?;
            if let Err(fault) = self.create(&name).await {
                self.tear_down(&name).await;
                return Err(fault);
            }
        }
        *users.entry(name.clone()).or_default() += 1;
        Ok(name)
    }

    /// One sandbox less; an unused network goes away.
    pub async fn release(&self, name: &str) {
        let mut users = self.users.lock().await;
        let Some(count) = users.get_mut(name) else { return };
        *count -= 1;
        if *count == 0 {
            users.remove(name);
            self.tear_down(name).await;
        }
    }

    /// One more sandbox, of an earlier process, on a network that is there.
    pub async fn adopt(&self, name: &str) {
        *self.users.lock().await.entry(name.to_owned()).or_default() += 1;
    }

    /// Removes networks and rules that nothing uses now.
    pub async fn collect(&self) -> Result<(), Fault> {
        let filters = labels::filter(&self.owner, labels::NETWORK);
        let options = ListNetworksOptionsBuilder::default().filters(&filters).build();
        let list = self.engine.raw().list_networks(Some(options)).await;
        let list = list.map_err(|error| fault::docker("listing networks", &error))?;
        let users = self.users.lock().await;
        let left: Vec<String> = list.into_iter().filter_map(|network| network.name).collect();
        for name in &left {
            if !users.contains_key(name) {
                self.tear_down(name).await;
            }
        }
        // Rules without a network: whoever made them ended half-way.
        let Some(listing) = list_rules().await else { return Ok(()) };
        for bridge in bridges(&listing, &self.owner.id) {
            if !users.contains_key(bridge)
                && !left.iter().any(|name| name == bridge)
                && let Err(fault) = uninstall(bridge).await
            {
                tracing::warn!(network = bridge, %fault, "cannot remove a network's rules");
            }
        }
        Ok(())
    }

    async fn create(&self, name: &str) -> Result<(), Fault> {
        let options = HashMap::from([
            ("com.docker.network.bridge.name".to_owned(), name.to_owned()),
            ("com.docker.network.bridge.enable_icc".to_owned(), "false".to_owned()),
        ]);
        let request = NetworkCreateRequest {
            name: name.to_owned(),
            driver: Some("bridge".into()),
            enable_ipv6: Some(false),
            options: Some(options),
            labels: Some(labels::of(&self.owner, labels::NETWORK)),
            ..Default::default()
        };
        match self.engine.raw().create_network(request).await {
            // 409: it is there from an earlier process.
            Ok(_) | Err(Error::DockerResponseServerError { status_code: 409, .. }) => Ok(()),
            Err(error) => Err(fault::docker("making a network", &error)),
        }
    }

    /// Best effort: what stays is found by [`Self::collect`] at the next start.
    async fn tear_down(&self, name: &str) {
        match self.engine.raw().remove_network(name).await {
            Ok(()) | Err(Error::DockerResponseServerError { status_code: 404, .. }) => {}
            Err(error) => {
                tracing::warn!(network = name, %error, "cannot remove a network");
                return;
            }
        }
        if let Err(fault) = uninstall(name).await {
            tracing::warn!(network = name, %fault, "cannot remove a network's rules");
        }
    }
}

/// All rules of this machine; `None` where there is no packet filter.
async fn list_rules() -> Option<String> {
    let listed =
        Command::new("iptables").args(["-w", "10", "-S"]).kill_on_drop(true).output().await;
    let listed = listed.ok().filter(|listed| listed.status.success())?;
    Some(String::from_utf8_lossy(&listed.stdout).into_owned())
}

/// Puts the rules of a bridge in place, whatever was there before.
async fn install(bridge: &str, rules: &RuleSet) -> Result<(), Fault> {
    run("iptables-restore", &["-w", "10", "--noflush"], &rules.restore_input(bridge)).await?;
    for (parent, chain) in parents(bridge) {
        let jump = [parent, "-i", bridge, "-j", &chain];
        if iptables("iptables", "-C", &jump).await.is_err() {
            iptables("iptables", "-I", &jump).await?;
        }
    }
    // Sandboxes get no IPv6 address; a link-local one must not help either.
    if Path::new("/proc/net/if_inet6").exists() {
        for parent in ["FORWARD", "INPUT"] {
            let drop = [parent, "-i", bridge, "-j", "DROP"];
            if iptables("ip6tables", "-C", &drop).await.is_err() {
                iptables("ip6tables", "-I", &drop).await?;
            }
        }
    }
    Ok(())
}

async fn uninstall(bridge: &str) -> Result<(), Fault> {
    for (parent, chain) in parents(bridge) {
        let jump = [parent, "-i", bridge, "-j", &chain];
        while iptables("iptables", "-C", &jump).await.is_ok() {
            iptables("iptables", "-D", &jump).await?;
        }
        if iptables("iptables", "-F", &[&chain]).await.is_ok() {
            iptables("iptables", "-X", &[&chain]).await?;
        }
    }
    if Path::new("/proc/net/if_inet6").exists() {
        for parent in ["FORWARD", "INPUT"] {
            let drop = [parent, "-i", bridge, "-j", "DROP"];
            while iptables("ip6tables", "-C", &drop).await.is_ok() {
                iptables("ip6tables", "-D", &drop).await?;
            }
        }
    }
    Ok(())
}

fn parents(bridge: &str) -> [(&'static str, String); 2] {
    let (forward, input) = chains(bridge);
    [("DOCKER-USER", forward), ("INPUT", input)]
}

async fn iptables(program: &str, operation: &str, rest: &[&str]) -> Result<(), Fault> {
    let args: Vec<&str> = ["-w", "10", operation].into_iter().chain(rest.iter().copied()).collect();
    run(program, &args, "").await
}

async fn run(program: &str, args: &[&str], input: &str) -> Result<(), Fault> {
    let failed = |what: String| {
        fault::infrastructure(
            "NetworkRulesFailed",
            format!("`{program} {}`: {what}; sandboxes with network need it", args.join(" ")),
        )
    };
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        let written = stdin.write_all(input.as_bytes()).await;
        written.map_err(|error| failed(error.to_string()))?;
    }
    let output = child.wait_with_output().await.map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}
