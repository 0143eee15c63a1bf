//! The engine on a virtual link: start-up, vectors, refusals, files, and
//! thousands of seeded runs.

mod atomics;
mod eager;
mod files;
mod link;
mod read_size;
mod reads;
mod refuse;
mod sim;
mod spill;
mod startup;
mod vectors;
mod world;
