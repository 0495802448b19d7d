{#- Written by `lakehouse scaffold`, its own while unchanged: aa2da3465b536791 -#}
{{ cdc_vault.sts_sat(src_pk='hk_transaction', source_model='stg_retail__transactions', src_nk=['txn_id']) }}
