// Saves what can be read of a database whose tables are damaged.
//
// What can be read is copied into a new database, which then takes the place of the damaged one;
// that is kept beside it, whole, until another one is. A crash at any moment leaves the one or the
// other, and the next start goes on from there (FinishSalvage):
//
//   PATH            the database
//   PATH.salvage/   where the new one is made; of no use after a crash
//   PATH.salvaged/  the new one, complete: it takes the place of PATH
//   PATH.damaged/   what was damaged, for whoever wants to look into it
//
// A table has a block for each key, and its index says which key that is, so a damaged block costs
// one key, whose value is then empty. A table whose index or end is damaged, or that is not there,
// is lost as a whole: what its keys were before it was written is what is saved, and an empty value
// for those that are known from elsewhere (key_roster.h) and were not there before.
//
// Threads: one at a time; nobody has the database open.
#pragma once

#include <set>
#include <string>

#include "base/status.h"
#include "offload/rocksdb_support.h"

namespace rocksdb {
struct Options;
}  // namespace rocksdb

namespace cairn {

// The options that make a salvage as exact as it can be; a database is opened with them for
// writing and for salvage.
void MakeSalvageable(rocksdb::Options& options);

// Logs a line for each damaged table, and one for what was done about them. `before` is given
// every key as it was without any change that lies in a damaged table; `known` are keys that the
// database has. The error says why nothing was done.
Status SalvageDatabase(const rocksdb::Options& options, const std::string& path,
                       const std::set<std::string>& known, const KeyVisitor& before);

// Ends what a crash cut off. Before each opening.
Status FinishSalvage(const std::string& path);

}  // namespace cairn
