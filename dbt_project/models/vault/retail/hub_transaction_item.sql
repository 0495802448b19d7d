{#- Written by `lakehouse scaffold`, its own while unchanged: 84b507f81b9af2b9 -#}
{{ cdc_vault.hub(src_pk='hk_transaction_item', src_nk='item_id', source_model=['stg_retail__transaction_items']) }}
