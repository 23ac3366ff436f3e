//! How far the CPUs of a set are from one of them, without a look at each.

use crate::model::{Distance, Shape};

/// Distances between different CPUs.
const APART: [Distance; 5] =
    [Distance::Sibling, Distance::SameL3, Distance::OtherL3, Distance::OtherDie, Distance::OtherSocket];

/// For each CPU, the CPUs at each distance from it.
#[derive(Debug)]
pub(super) struct Distances {
    /// For each CPU and each of [`APART`] a set, a bit for each CPU.
    sets: Vec<u64>,
    /// Words of a set.
    words: usize,
}

impl Distances {
    pub(super) fn new(shape: Shape) -> Self {
        let words = usize::from(shape.cpus()).div_ceil(64);
        let mut sets = vec![0; usize::from(shape.cpus()) * APART.len() * words];
        for cpu in 0..shape.cpus() {
            for neighbour in (0..shape.cpus()).filter(|&neighbour| neighbour != cpu) {
                // Same, which no other CPU is at, comes first.
                let distance = shape.distance(cpu, neighbour) as usize - 1;
                let set = (usize::from(cpu) * APART.len() + distance) * words;
                sets[set + usize::from(neighbour / 64)] |= 1 << (neighbour % 64);
            }
        }
        Self { sets, words }
    }

    /// Distances from a CPU to the others of a set: a bit for each, by its number.
    #[inline]
    pub(super) fn from(&self, cpu: u16, set: &[u64]) -> u8 {
        let sets = &self.sets[usize::from(cpu) * APART.len() * self.words..][..APART.len() * self.words];
        let mut found = 0;
        for (at, distance) in sets.chunks_exact(self.words).zip(APART) {
            if at.iter().zip(set).any(|(at, set)| at & set != 0) {
                found |= 1 << distance as u8;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Rng;

    #[test]
    fn a_set_is_as_far_as_its_members_one_by_one() {
        let shapes = [
            Shape { sockets: 2, nodes: 2, cores_per_node: 64, cores_per_l3: 4, threads_per_core: 2 },
            Shape { sockets: 1, nodes: 4, cores_per_node: 8, cores_per_l3: 4, threads_per_core: 1 },
        ];
        let mut rng = Rng::new(1);
        for shape in shapes {
            let distances = Distances::new(shape);
            for n in 0..2000 {
                let cpu = rng.below(u64::from(shape.cpus())) as u16;
                let members: Vec<u16> =
                    (0..n % 7).map(|_| rng.below(u64::from(shape.cpus())) as u16).collect();
                let mut set = vec![0; usize::from(shape.cpus()).div_ceil(64)];
                members.iter().for_each(|&member| set[usize::from(member / 64)] |= 1 << (member % 64));
                let others = members.iter().filter(|&&member| member != cpu);
                let expected =
                    others.fold(0, |found, &neighbour| found | 1 << shape.distance(cpu, neighbour) as u8);
                assert_eq!(distances.from(cpu, &set), expected, "{cpu} {members:?}");
            }
        }
    }
}
