{#- Written by `lakehouse scaffold`, its own while unchanged: 150edb79f077f22a -#}
{{ hub(src_pk='hk_store', src_nk='store_id', source_model=['stg_retail__stores', 'stg_retail__transactions']) }}
