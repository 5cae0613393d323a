//! Which addresses a sandbox with network reaches, as iptables rules. Pure.

use std::collections::BTreeSet;
use std::fmt;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// An IPv4 network; sandboxes have no IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cidr {
    base: u32,
    bits: u8,
}

/// Text that is no IPv4 network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an IPv4 network: write it as 10.0.0.0/8, or 10.1.2.3/32:443 with a port")]
pub struct InvalidCidr(String);

impl Cidr {
    fn mask(bits: u8) -> u32 {
        u32::MAX.checked_shl(u32::from(32 - bits)).unwrap_or(0)
    }

    /// True when some address is in both.
    pub fn overlaps(self, other: Self) -> bool {
        let mask = Self::mask(self.bits.min(other.bits));
        self.base & mask == other.base & mask
    }
}

impl FromStr for Cidr {
    type Err = InvalidCidr;

    fn from_str(text: &str) -> Result<Self, InvalidCidr> {
        let invalid = || InvalidCidr(text.chars().take(64).collect());
        let (address, bits) = text.split_once('/').unwrap_or((text, "32"));
        let address: Ipv4Addr = address.parse().map_err(|_| invalid())?;
        let bits: u8 = bits.parse().ok().filter(|bits| *bits <= 32).ok_or_else(invalid)?;
        Ok(Self { base: u32::from(address) & Self::mask(bits), bits })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.base), self.bits)
    }
}

/// An address range that a template names, with a port where it says one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Allow {
    /// The range.
    pub cidr: Cidr,
    /// TCP and UDP port; `None` is every protocol and port.
    pub port: Option<u16>,
}

impl FromStr for Allow {
    type Err = InvalidCidr;

    fn from_str(text: &str) -> Result<Self, InvalidCidr> {
        let Some((cidr, port)) = text.split_once(':') else {
            return Ok(Self { cidr: text.parse()?, port: None });
        };
        let port = port.parse().ok().filter(|port| *port > 0);
        let port = port.ok_or_else(|| InvalidCidr(text.chars().take(64).collect()))?;
        Ok(Self { cidr: cidr.parse()?, port: Some(port) })
    }
}

/// Link-local: the metadata services of clouds. Closed under every policy.
const METADATA: &str = "169.254.0.0/16";

/// What one Docker network lets through. Equal sets share a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleSet {
    closed: Vec<Cidr>,
    allow: Vec<Allow>,
}

impl RuleSet {
    /// The rules for a template's `allow` under a policy's closed networks and
    /// DNS servers.
    pub fn new(closed: &[String], allow: &[String], dns: &[Ipv4Addr]) -> Result<Self, InvalidCidr> {
        let mut closed: Vec<Cidr> = closed
            .iter()
            .map(String::as_str)
            .chain([METADATA])
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        let mut allow: Vec<Allow> =
            allow.iter().map(|entry| entry.parse()).collect::<Result<_, _>>()?;
        allow.extend(dns.iter().map(|server| Allow {
            cidr: Cidr { base: u32::from(*server), bits: 32 },
            port: Some(53),
        }));
        closed.sort();
        closed.dedup();
        allow.sort();
        allow.dedup();
        Ok(Self { closed, allow })
    }

    /// Name of the bridge and Docker network: the same for equal sets of one agent.
    pub fn name(&self, agent_id: &str) -> String {
        let hash = hash(&format!("{agent_id}\n{self:?}"));
        format!("{}{:08x}", prefix(agent_id), hash & 0xffff_ffff)
    }

    /// Input of `iptables-restore --noflush`: both chains of the bridge, replaced
    /// in one step.
    pub fn restore_input(&self, bridge: &str) -> String {
        let (forward, input) = chains(bridge);
        let mut text = format!("*filter\n:{forward} - [0:0]\n:{input} - [0:0]\n");
        for chain in [&forward, &input] {
            push(&mut text, chain, "-m conntrack --ctstate RELATED,ESTABLISHED -j RETURN");
            for allow in &self.allow {
                match allow.port {
                    None => push(&mut text, chain, &format!("-d {} -j RETURN", allow.cidr)),
                    Some(port) => {
                        for protocol in ["tcp", "udp"] {
                            let rule =
                                format!("-d {} -p {protocol} --dport {port} -j RETURN", allow.cidr);
                            push(&mut text, chain, &rule);
                        }
                    }
                }
            }
        }
        for cidr in &self.closed {
            push(&mut text, &forward, &format!("-d {cidr} -j DROP"));
        }
        // Whatever address of this node it is: a packet here is for the node itself.
        push(&mut text, &input, "-j DROP");
        text.push_str("COMMIT\n");
        text
    }
}

/// FNV-1a: stable over builds, and nobody gains by a collision within one node.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// What the names of an agent's bridges begin with.
fn prefix(agent_id: &str) -> String {
    format!("rw{:05x}", hash(agent_id) & 0xf_ffff)
}

/// Bridges of this agent that have chains in `iptables -S`.
pub fn bridges<'a>(listing: &'a str, agent_id: &str) -> BTreeSet<&'a str> {
    let prefix = prefix(agent_id);
    let chains = listing.lines().filter_map(|line| line.strip_prefix("-N RW-"));
    let bridges = chains.filter_map(|chain| chain.split_once('-').map(|(_, bridge)| bridge));
    bridges.filter(|bridge| bridge.starts_with(&prefix)).collect()
}

fn push(text: &mut String, chain: &str, rule: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "-A {chain} {rule}");
}

/// Names of a bridge's forward and input chains.
pub fn chains(bridge: &str) -> (String, String) {
    (format!("RW-FWD-{bridge}"), format!("RW-IN-{bridge}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn networks_parse_and_overlap() {
        let cidr = |text: &str| text.parse::<Cidr>().unwrap();
        assert_eq!(cidr("10.1.2.3/8").to_string(), "10.0.0.0/8");
        assert!(cidr("0.0.0.0/0").overlaps(cidr("8.8.8.8")));
        assert!(!cidr("10.0.0.0/9").overlaps(cidr("10.128.0.0/9")));
        for bad in ["", "10.0.0.0/33", "10.0.0/8", "fe80::/10", "a/8", "10.0.0.0/-1"] {
            assert!(bad.parse::<Cidr>().is_err(), "{bad}");
        }
        assert_eq!("10.0.0.1/32:443".parse::<Allow>().unwrap().port, Some(443));
        assert!("10.0.0.1/32:0".parse::<Allow>().is_err());
    }

    #[test]
    fn names_do_not_depend_on_order_and_fit_a_bridge() {
        let list = |texts: &[&str]| texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>();
        let one =
            RuleSet::new(&list(&["10.0.0.0/8"]), &list(&["10.1.0.0/16", "10.2.0.0/16:80"]), &[]);
        let two =
            RuleSet::new(&list(&["10.0.0.0/8"]), &list(&["10.2.0.0/16:80", "10.1.0.0/16"]), &[]);
        let (one, two) = (one.unwrap(), two.unwrap());
        assert_eq!(one.name("n"), two.name("n"));
        assert_ne!(one.name("n"), one.name("m"));
        assert!(one.name("n").len() < 16 && chains(&one.name("n")).0.len() < 29);
    }

    #[test]
    fn an_agent_finds_its_own_chains() {
        let name = RuleSet::new(&[], &[], &[]).unwrap().name("me");
        let (forward, input) = chains(&name);
        let other = chains(&RuleSet::new(&[], &[], &[]).unwrap().name("other")).0;
        let listing = format!(
            "-P INPUT ACCEPT\n-N DOCKER\n-N {forward}\n-N {input}\n-N {other}\n\
             -A INPUT -i {name} -j {input}\n"
        );
        assert_eq!(bridges(&listing, "me").into_iter().collect::<Vec<_>>(), [name]);
    }

    #[test]
    fn metadata_is_always_closed_and_what_is_allowed_comes_first() {
        let rules =
            RuleSet::new(&[], &["10.0.0.1:80".into()], &[Ipv4Addr::new(10, 0, 0, 2)]).unwrap();
        let text = rules.restore_input("rwx");
        let allow = text.find("-d 10.0.0.1/32 -p tcp --dport 80 -j RETURN").unwrap();
        let closed = text.find("-A RW-FWD-rwx -d 169.254.0.0/16 -j DROP").unwrap();
        assert!(allow < closed);
        assert!(text.contains("-A RW-IN-rwx -j DROP\nCOMMIT"));
        for chain in ["FWD", "IN"] {
            let rule = format!("-A RW-{chain}-rwx -d 10.0.0.2/32 -p udp --dport 53 -j RETURN");
            assert!(text.find(&rule).unwrap() < closed || chain == "IN", "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_breaks_out_of_a_rule(text in ".{0,30}") {
            if let Ok(allow) = text.parse::<Allow>() {
                prop_assert!(!allow.cidr.to_string().contains(char::is_whitespace));
            }
        }
    }
}
