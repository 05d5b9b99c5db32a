//! What one server of a cluster knows of it.

use super::servers::Host;
use super::slots::SLOTS;
use std::collections::HashMap;

/// What one server knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    /// Who has slots.
    pub(super) claims: Vec<Claim>,
    /// Who follows whom.
    followers: Vec<(Host, Host)>,
    /// All servers, also those without.
    pub(super) hosts: Vec<Host>,
}

/// Slots that a primary has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) host: Host,
    /// Grows whenever slots go to another server: of two claims to a slot the one with the higher number is right.
    epoch: u64,
    /// First and last of each range.
    slots: Vec<(u16, u16)>,
}

/// How servers that have both are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Called {
    ByAddress,
    /// As certificates want it.
    ByName,
}

impl View {
    /// What `CLUSTER NODES` says, told by the server at `teller`. It is asked rather than `CLUSTER SLOTS` because only there
    /// the numbers are by which a server that was cut off from the others can be told from one that was not.
    pub(super) fn read(text: &str, teller: &Host, called: Called) -> Self {
        let mut view = Self::default();
        let (mut ids, mut followers) = (HashMap::new(), Vec::new());
        for line in text.lines() {
            let mut words = line.split(' ');
            let (Some(id), Some(address), Some(flags)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            if flags.contains("noaddr") || flags.contains("handshake") {
                continue;
            }
            let Some(host) = host(address, teller, called) else {
                continue;
            };
            view.hosts.push(host.clone());
            ids.insert(id, host.clone());
            // Behind flags: its primary, when it was asked and answered, its epoch, whether it can be reached, its slots.
            let primary = words.next().unwrap_or_default();
            if flags.split(',').any(|flag| flag == "slave") {
                followers.push((host.clone(), primary));
            }
            let epoch = words.nth(2).and_then(|epoch| epoch.parse().ok());
            let slots: Vec<(u16, u16)> = words.skip(1).filter_map(range).collect();
            if let Some(epoch) = epoch
                && flags.split(',').any(|flag| flag == "master")
                && !slots.is_empty()
            {
                view.claims.push(Claim { host, epoch, slots });
            }
        }
        let of = |(host, id): (Host, &str)| Some((host, ids.get(id)?.clone()));
        view.followers = followers.into_iter().filter_map(of).collect();
        view
    }

    /// Who follows a primary, as any of them says.
    pub(super) fn replicas(views: &[Self], primary: &Host) -> Vec<Host> {
        let followers = views.iter().flat_map(|view| &view.followers);
        let its = followers.filter(|(_, of)| of == primary).map(|(host, _)| host.clone());
        let mut its: Vec<Host> = its.collect();
        its.sort_by_key(ToString::to_string);
        its.dedup();
        its
    }

    /// Who has a slot, as the best informed of them says.
    pub(super) fn owner(views: &[Self], slot: u16) -> Option<&Host> {
        let claims = views.iter().flat_map(|view| &view.claims);
        let claims = claims.filter(|claim| claim.slots.iter().any(|(first, last)| (first..=last).contains(&&slot)));
        claims.max_by_key(|claim| claim.epoch).map(|claim| &claim.host)
    }
}

/// `address:port@port-for-servers,name,…`
fn host(text: &str, teller: &Host, called: Called) -> Option<Host> {
    let mut parts = text.split(',');
    let address = parts.next()?.split('@').next()?;
    let mut host = Host::read(address, Some(teller))?;
    let name = parts.next().filter(|name| !name.is_empty() && !name.contains('='));
    if let (Called::ByName, Some(name)) = (called, name) {
        host.name = name.to_owned();
    }
    Some(host)
}

/// `5461` or `0-5460`. What is about to go elsewhere stands in brackets behind, and is still here.
fn range(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let slot = |text: &str| text.parse::<u16>().ok().filter(|slot| *slot < SLOTS);
    Some((slot(first)?, slot(last)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn teller() -> Host {
        Host {
            name: "10.0.0.9".to_owned(),
            port: 7000,
        }
    }

    #[test]
    fn what_servers_say_of_their_cluster_is_read() {
        let text = "\
07c3 127.0.0.1:30004@31004,hostname4 slave e7d1 0 1426238317239 4 connected
67ed 127.0.0.1:30002@31002,hostname2,shard-id=69bc master - 0 1426238316232 2 connected 5461-10922
2923 :30003@31003 master,fail - 0 1426238318243 3 connected 10923-16383 77 [93-<-67ed]
824f :0@0,,tls-port=0 master,noaddr - 0 1426238317741 1 disconnected 0-3
e7d1 127.0.0.1:30001@31001,,tls-port=0,shard-id=2 myself,master - 0 0 1 connected
";
        let view = View::read(text, &teller(), Called::ByAddress);
        let hosts: Vec<String> = view.hosts.iter().map(ToString::to_string).collect();
        assert_eq!(
            hosts.join(" "),
            "127.0.0.1:30004 127.0.0.1:30002 10.0.0.9:30003 127.0.0.1:30001"
        );
        let owner = |slot| View::owner(std::slice::from_ref(&view), slot).map(|host| host.port);
        assert_eq!(
            [5460, 5461, 10_922, 16_383, 77, 93].map(owner),
            [None, Some(30_002), Some(30_002), Some(30_003), Some(30_003), None]
        );
        let replicas = |port| {
            let name = "127.0.0.1".to_owned();
            let of = View::replicas(&[view.clone(), view.clone()], &Host { name, port });
            of.iter().map(|host| host.port).collect::<Vec<_>>()
        };
        assert_eq!((replicas(30_001), replicas(30_002)), (vec![30_004], Vec::new()));
        let named = View::read(text, &teller(), Called::ByName);
        assert_eq!(named.claims[0].host.name, "hostname2");
        assert_eq!(
            View::read("nonsense\n\n a b", &teller(), Called::ByName),
            View::default()
        );
    }

    #[test]
    fn of_two_claims_the_later_one_is_right() {
        let view = |epoch: u64, port: u16| {
            let text = format!("a 127.0.0.1:{port}@1 master - 0 0 {epoch} connected 0-16383");
            View::read(&text, &teller(), Called::ByAddress)
        };
        let owner = |views: &[View]| View::owner(views, 9).map(|host| host.port);
        assert_eq!(owner(&[view(3, 1), view(4, 2)]), Some(2));
        assert_eq!(owner(&[view(4, 2), view(3, 1), view(3, 1)]), Some(2));
    }
}
