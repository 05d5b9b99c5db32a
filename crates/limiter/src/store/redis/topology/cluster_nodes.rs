//! The topology of a cluster as one of its servers reports it by `CLUSTER NODES`.

use crate::store::redis::connection::endpoint::Endpoint;
use crate::store::redis::topology::slots::SLOTS;
use std::collections::HashMap;

/// The report of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterNodes {
    /// The slots of each primary.
    pub(crate) claims: Vec<SlotClaim>,
    /// Each replica and its primary.
    replica_links: Vec<(Endpoint, Endpoint)>,
    /// All servers, also those without slots.
    pub(crate) endpoints: Vec<Endpoint>,
}

/// The slots of a primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotClaim {
    pub(crate) endpoint: Endpoint,
    /// Grows when slots get another owner: of two claims to a slot the one with the higher epoch is right.
    epoch: u64,
    /// First and last slot of each range.
    slots: Vec<(u16, u16)>,
}

/// The name used for a server that has both an address and a hostname.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressBy {
    Address,
    /// As certificates need it.
    Hostname,
}

impl ClusterNodes {
    /// Parses `CLUSTER NODES` of the server at `reporter`. `CLUSTER SLOTS` has no epochs, by which a server that was
    /// cut off from the others can be recognised.
    pub(crate) fn read(text: &str, reporter: &Endpoint, address_by: AddressBy) -> Self {
        let mut view = Self::default();
        let (mut ids, mut replica_links) = (HashMap::new(), Vec::new());
        for line in text.lines() {
            let mut fields = line.split(' ');
            let (Some(id), Some(address), Some(flags)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            if flags.contains("noaddr") || flags.contains("handshake") {
                continue;
            }
            let Some(endpoint) = endpoint(address, reporter, address_by) else {
                continue;
            };
            view.endpoints.push(endpoint.clone());
            ids.insert(id, endpoint.clone());
            // Behind the flags: its primary, the last ping and pong, its epoch, its link state, its slots.
            let primary = fields.next().unwrap_or_default();
            if flags.split(',').any(|flag| flag == "slave") {
                replica_links.push((endpoint.clone(), primary));
            }
            let epoch = fields.nth(2).and_then(|epoch| epoch.parse().ok());
            let slots: Vec<(u16, u16)> = fields.skip(1).filter_map(range).collect();
            if let Some(epoch) = epoch
                && flags.split(',').any(|flag| flag == "master")
                && !slots.is_empty()
            {
                view.claims.push(SlotClaim { endpoint, epoch, slots });
            }
        }
        let resolve = |(endpoint, id): (Endpoint, &str)| Some((endpoint, ids.get(id)?.clone()));
        view.replica_links = replica_links.into_iter().filter_map(resolve).collect();
        view
    }

    /// The replicas of a primary, in any of the reports.
    pub(crate) fn replicas(views: &[Self], primary: &Endpoint) -> Vec<Endpoint> {
        let replica_links = views.iter().flat_map(|view| &view.replica_links);
        let replicas = replica_links
            .filter(|(_, link_primary)| link_primary == primary)
            .map(|(endpoint, _)| endpoint.clone());
        let mut replicas: Vec<Endpoint> = replicas.collect();
        replicas.sort_by_key(ToString::to_string);
        replicas.dedup();
        replicas
    }

    /// The owner of a slot: the claim with the highest epoch.
    pub(crate) fn owner(views: &[Self], slot: u16) -> Option<&Endpoint> {
        let claims = views.iter().flat_map(|view| &view.claims);
        let claims = claims.filter(|claim| claim.slots.iter().any(|(first, last)| (first..=last).contains(&&slot)));
        claims.max_by_key(|claim| claim.epoch).map(|claim| &claim.endpoint)
    }
}

/// `address:port@cluster-port,hostname,…`
fn endpoint(text: &str, reporter: &Endpoint, address_by: AddressBy) -> Option<Endpoint> {
    let mut parts = text.split(',');
    let address = parts.next()?.split('@').next()?;
    let mut endpoint = Endpoint::parse(address, Some(reporter))?;
    let name = parts.next().filter(|name| !name.is_empty() && !name.contains('='));
    if let (AddressBy::Hostname, Some(name)) = (address_by, name) {
        endpoint.name = name.to_owned();
    }
    Some(endpoint)
}

/// `5461` or `0-5460`. A migrating slot stands in brackets behind, and is still owned.
fn range(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let slot = |text: &str| text.parse::<u16>().ok().filter(|slot| *slot < SLOTS);
    Some((slot(first)?, slot(last)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reporter() -> Endpoint {
        Endpoint {
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
        let view = ClusterNodes::read(text, &reporter(), AddressBy::Address);
        let endpoints: Vec<String> = view.endpoints.iter().map(ToString::to_string).collect();
        assert_eq!(
            endpoints.join(" "),
            "127.0.0.1:30004 127.0.0.1:30002 10.0.0.9:30003 127.0.0.1:30001"
        );
        let owner = |slot| ClusterNodes::owner(std::slice::from_ref(&view), slot).map(|endpoint| endpoint.port);
        assert_eq!(
            [5460, 5461, 10_922, 16_383, 77, 93].map(owner),
            [None, Some(30_002), Some(30_002), Some(30_003), Some(30_003), None]
        );
        let replicas = |port| {
            let name = "127.0.0.1".to_owned();
            let found = ClusterNodes::replicas(&[view.clone(), view.clone()], &Endpoint { name, port });
            found.iter().map(|endpoint| endpoint.port).collect::<Vec<_>>()
        };
        assert_eq!((replicas(30_001), replicas(30_002)), (vec![30_004], Vec::new()));
        let by_hostname = ClusterNodes::read(text, &reporter(), AddressBy::Hostname);
        assert_eq!(by_hostname.claims[0].endpoint.name, "hostname2");
        assert_eq!(
            ClusterNodes::read("nonsense\n\n a b", &reporter(), AddressBy::Hostname),
            ClusterNodes::default()
        );
    }

    #[test]
    fn of_two_claims_the_later_one_is_right() {
        let view = |epoch: u64, port: u16| {
            let text = format!("a 127.0.0.1:{port}@1 master - 0 0 {epoch} connected 0-16383");
            ClusterNodes::read(&text, &reporter(), AddressBy::Address)
        };
        let owner = |views: &[ClusterNodes]| ClusterNodes::owner(views, 9).map(|endpoint| endpoint.port);
        assert_eq!(owner(&[view(3, 1), view(4, 2)]), Some(2));
        assert_eq!(owner(&[view(4, 2), view(3, 1), view(3, 1)]), Some(2));
    }
}
