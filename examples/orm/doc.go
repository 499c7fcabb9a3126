// Package orm has only tests: they show how to enqueue in a transaction of an
// ORM, or of database/sql with any driver, through the Store's SQLTx. It is a
// module of its own, so that nobody else depends on the ORMs.
//
// SQLTx takes what has ExecContext and QueryContext and passes statements on as
// they are. What to hand it:
//
//	database/sql   store.SQLTx(tx)                      // *sql.Tx, with pgx or lib/pq
//	sqlx           store.SQLTx(tx)                      // *sqlx.Tx
//	gorm           store.SQLTx(tx.Statement.ConnPool)   // of the *gorm.DB in Transaction
//	bun            store.SQLTx(tx.Tx)                   // bun.Tx rewrites statements, its Tx does not
//	ent            store.SQLTx(tx.(*entsql.Tx))         // of (*entsql.Driver).Tx
//
// On MySQL no two statements have the same text, so what prepares and keeps them
// must be passed by: with gorm's PrepareStmt, hand it the Tx of the ConnPool, as
// the function under in mysql_test.go does.
//
// A client that ent has generated with the feature sql/execquery has both
// methods on its Tx, and goes in as it is.
package orm
