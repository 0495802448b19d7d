{#- Written by `lakehouse scaffold`, its own while unchanged: 707a43d97359273d -#}
{{ cdc_vault.timeline(source_model='sts_product', src_pk='hk_product', src_hashdiff='hd_status') }}
