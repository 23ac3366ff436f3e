//! An ACPI System Resource Affinity Table as nodes: [`framewright::boot::srat`] reads the records, and domains become
//! nodes here in the order in which the table names them first.

use framewright::NodeId;
use framewright::boot::map::Home;
use framewright::boot::srat::{self, Affinity as Record};

use super::FirmwareError;

/// Contents of an SRAT.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Affinity {
    /// First byte, bytes, and whose they are. Ranges that are not enabled or have no byte are left out.
    pub memory: Vec<(u64, u64, Home)>,
    /// Node of each enabled CPU, in the table's order.
    pub cpu_nodes: Vec<NodeId>,
    /// The proximity domain of each node.
    pub domains: Vec<u32>,
}

/// More than any machine has, and fewer than a node's number can say.
const MOST_DOMAINS: usize = 1024;

/// Reads a table. `place` is what it is called. O(records × domains).
///
/// # Errors
/// The damage, and its byte.
pub fn read(place: &str, table: &[u8]) -> Result<Affinity, FirmwareError> {
    let refuse = |what: String| FirmwareError::whole(place, what);
    let mut affinity = Affinity::default();
    for record in srat::affinities(table).map_err(|damage| refuse(damage.to_string()))? {
        match record.map_err(|damage| refuse(damage.to_string()))? {
            Record::Cpu { domain, .. } => {
                let node = affinity.node(domain).map_err(refuse)?;
                affinity.cpu_nodes.push(node);
            }
            Record::Memory { start, bytes, domain, hot_pluggable } => {
                let node = affinity.node(domain).map_err(refuse)?;
                if bytes > 0 {
                    affinity.memory.push((start, bytes, Home { node, hot_pluggable }));
                }
            }
        }
    }
    Ok(affinity)
}

impl Affinity {
    fn node(&mut self, domain: u32) -> Result<NodeId, String> {
        let known = self.domains.iter().position(|&known| known == domain);
        if known.is_none() && self.domains.len() == MOST_DOMAINS {
            return Err(format!("it names domain {domain}: more than {MOST_DOMAINS} domains"));
        }
        let index = known.unwrap_or_else(|| {
            self.domains.push(domain);
            self.domains.len() - 1
        });
        Ok(NodeId(index as u16))
    }
}
