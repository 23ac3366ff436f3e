//! A node runs out and its CPUs get the next one's memory; the machine runs out, and the error names the lack of each
//! zone.

use framewright::error::AllocFailure;
use framewright::units::MAX_ORDER;
use framewright::{Migratetype, NodeId, Order};

use super::support::{Chain, node_of};
use crate::kernel::Kernel;
use crate::machine::{List, MAX_NODES};
use crate::{log, percpu};

pub(super) fn run(kernel: &'static Kernel) {
    let cpu = percpu::current().number;
    let node = kernel.cpu_nodes[cpu.index()];
    let chain = Chain::new();
    let mut order_of_nodes: List<(NodeId, u64), MAX_NODES> = List::new((NodeId(0), 0));
    let order = MAX_ORDER;
    let error = loop {
        match kernel.alloc(order, Migratetype::Movable) {
            Ok(pfn) => {
                note(&mut order_of_nodes, node_of(kernel, pfn));
                chain.push(kernel, pfn, order);
            }
            Err(error) => break error,
        }
    };
    for (at, blocks) in order_of_nodes.iter() {
        log!("exhaust: {blocks} blocks of order {order} from node {}", at.0);
    }
    assert_eq!(order_of_nodes[0].0, node, "the first blocks are the own node's");
    let with_memory = kernel.pages.zones().iter().map(|zone| zone.spec().node);
    let all =
        (0..kernel.machine.nodes()).filter(|&n| with_memory.clone().any(|node| usize::from(node.0) == n));
    assert_eq!(order_of_nodes.len(), all.count(), "each node was used up before the next one was touched");
    log!("exhaust: {error}");
    assert_eq!((error.why, error.order), (AllocFailure::NoMemory, order));
    assert!(error.largest < Some(order), "a zone had such a block");
    // What is too small for this is still there for who asks for less.
    let page = kernel.alloc(Order::ZERO, Migratetype::Movable);
    let page = page.unwrap_or_else(|error| panic!("small blocks are left: {error}"));
    kernel.free(page, Order::ZERO).unwrap_or_else(|error| panic!("{error}"));
    while let Some((pfn, order)) = chain.pop(kernel) {
        kernel.free(pfn, order).unwrap_or_else(|error| panic!("{error}"));
    }
    let again = kernel.alloc(order, Migratetype::Movable).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(node_of(kernel, again), node, "the own node has memory again");
    kernel.free(again, order).unwrap_or_else(|error| panic!("{error}"));
}

/// Notes from which node a block came: a run of blocks per node, and no node twice.
fn note(nodes: &mut List<(NodeId, u64), MAX_NODES>, node: NodeId) {
    match nodes.last_mut() {
        Some((last, blocks)) if *last == node => *blocks += 1,
        _ => {
            assert!(nodes.iter().all(|(known, _)| *known != node), "{node:?} was not empty when it was left");
            nodes.push((node, 1));
        }
    }
}
