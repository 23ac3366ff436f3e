//! tmp
use framewright_workload::*;
fn main(){ for a in std::env::args().skip(1) { match import::import(a.as_ref()) { Ok(t)=>{ println!("{:?} {} events", t.meta, t.events.len()); for k in trace::EventKind::ALL { println!("{k}: {}", t.count(k)); }
 t.write(format!("{a}.parquet").as_ref()).unwrap(); }, Err(e)=>println!("{e}")} } }
