//! The engine on a virtual link: start-up, vectors, refusals, files, and
//! thousands of seeded runs.

mod aside;
mod files;
mod gap;
mod link;
mod reads;
mod refuse;
mod short;
mod sim;
mod startup;
mod vectors;
mod world;
